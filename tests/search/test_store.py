"""The store: what is acknowledged is kept, exactly, for any path; one writer, many readers."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from crow.search import database
from crow.search.disk import is_network
from crow.search.sqlite import SqliteStore
from crow.search.store import Failure, Row, StoreBusy, StoreError, store_at

RANDOM = np.random.default_rng(3)
UNDECODABLE = os.fsdecode(b"/pictures/caf\xe9\n\xff.jpg")


def row(path: str, dim: int = 8, **more: object) -> Row:
    return Row(path, RANDOM.standard_normal(dim).astype(np.float32), sha256=path.encode("utf-8", "replace"), **more)  # type: ignore[arg-type]


@pytest.fixture
def store(tmp_path: Path):
    with SqliteStore.create(tmp_path / "a.crow", recipe={"name": "crow"}, whitening=b"\0\1") as store:
        yield store


def test_everything_comes_back_as_it_was(store: SqliteStore) -> None:
    rows = [row("/a b/1.jpg", size=5, mtime=7, width=3, height=4, taken="2024-05-06T12:13:14"), row(UNDECODABLE)]
    ids = store.upsert(rows)
    store.close()
    with SqliteStore.open(store.address) as again:
        found = again.get([r.path for r in rows], vectors=True)
        for r, i in zip(rows, ids, strict=True):
            back = found[r.path]
            assert (back.path, back.size, back.mtime, back.sha256, back.width, back.height, back.taken, back.id) == (
                r.path, r.size, r.mtime, r.sha256, r.width, r.height, r.taken, i,
            )  # fmt: skip
            np.testing.assert_array_equal(back.vector, r.vector)
        assert again.settings() | {"uuid": 0} == {
            "recipe": {"name": "crow"}, "whitening": b"\0\1", "whitening_generation": 1, "dim": 8, "uuid": 0,
        }  # fmt: skip
        assert list(again.check()) == []


def test_an_id_names_one_vector_for_ever(store: SqliteStore) -> None:
    a, b = store.upsert([row("a"), row("b")])
    start = store.generation
    (again,) = store.upsert([row("a")])
    store.move([Row("c", id=int(b), size=9)])
    changes = store.changes(start)
    assert (changes.added.tolist(), changes.removed.tolist()) == ([again], [a])
    assert changes.generation == store.generation == start + 2
    assert store.remove(["a", "not there"]) == 1
    assert store.upsert([row("d")])[0] > again
    assert [r and r.path for r in store.rows([b, a])] == ["c", None]
    assert list(store.check()) == []


def test_pictures_that_change_places_keep_their_vectors(store: SqliteStore) -> None:
    rows = [row("a"), row("b"), row("c")]
    a, b, _ = store.upsert(rows)
    store.move([Row("b", id=int(a)), Row("a", id=int(b))])
    store.move([Row("c", id=int(a))])  # over a picture that is there: that one is gone
    found = store.get(["a", "b", "c"], vectors=True)
    assert set(found) == {"a", "c"}
    np.testing.assert_array_equal(found["a"].vector, rows[1].vector)
    np.testing.assert_array_equal(found["c"].vector, rows[0].vector)
    assert list(store.check()) == []


def test_vectors_come_in_the_order_asked_for(store: SqliteStore) -> None:
    rows = [row(str(i)) for i in range(1700)]
    ids = store.upsert(rows)
    store.remove(map(str, range(0, 1700, 3)))
    kept = np.array([i for i in range(1700) if i % 3])
    order = RANDOM.permutation(kept)
    expected = np.stack([rows[i].vector for i in order])
    np.testing.assert_array_equal(store.vectors(ids[order]), expected)
    np.testing.assert_array_equal(store.vectors(), np.stack([rows[i].vector for i in kept]))
    parts = list(store.chunks(100))
    np.testing.assert_array_equal(np.concatenate([i for i, _ in parts]), ids[kept])
    np.testing.assert_array_equal(np.concatenate([v for _, v in parts]), store.vectors())
    assert store.vectors(ids[:0]).shape == (0, 8)
    with pytest.raises(StoreError, match="no picture has the id 1"):
        store.vectors(ids[:1])


def test_filters(store: SqliteStore) -> None:
    days = {
        "/p/a/1": "2024-01-01T00:00:00",
        "/p/a/2": None,
        "/p/a0": "2024-02-01T00:00:00",
        "/p/ab/3": "2025-01-01T00:00:00",
    }
    ids = dict(zip(days, store.upsert(row(p, taken=t) for p, t in days.items()), strict=True))
    assert store.ids(under="/p/a").tolist() == [ids["/p/a/1"], ids["/p/a/2"]]
    assert store.ids(under="/p/").tolist() == store.ids(under="/").tolist() == store.ids().tolist()
    assert store.ids(after="2024-02").tolist() == [ids["/p/a0"], ids["/p/ab/3"]]
    assert store.ids(before="2025", under="/p").tolist() == [ids["/p/a/1"], ids["/p/a0"]]


def test_a_failure_takes_the_place_of_a_picture_and_back(store: SqliteStore) -> None:
    store.upsert([row(UNDECODABLE)])
    store.fail([Failure(UNDECODABLE, f"{UNDECODABLE}: cut short", 3, 4)])
    assert len(store) == 0 and store.failures()[UNDECODABLE].size == 3
    store.upsert([row(UNDECODABLE)])
    assert len(store) == 1 and store.failures() == {}
    assert list(store.stamps()) == [UNDECODABLE]


@pytest.mark.parametrize(
    ("vector", "reason"),
    [
        (np.full(8, np.nan), "NaN or infinity"),
        (np.r_[np.inf, np.ones(7)], "NaN or infinity"),
        (np.zeros(8), "is zero"),
        (np.ones(7), "7 dimensions"),
        (np.ones((1, 8)), r"vector \(K,\)"),
        (None, r"vector \(K,\)"),
    ],
)
def test_a_vector_that_can_be_no_descriptor_is_refused_and_nothing_is_kept(
    store: SqliteStore, vector: np.ndarray | None, reason: str
) -> None:
    store.upsert([row("a")])
    with pytest.raises(StoreError, match=f"bad.jpg: .*{reason}"):
        store.upsert([row("b"), Row("bad.jpg", vector)])
    assert list(store.stamps()) == ["a"]


def test_a_path_named_twice_counts_once(store: SqliteStore) -> None:
    (a,) = store.upsert([row("a"), row("a")])
    store.move([Row("b", id=int(a)), Row("c", id=int(a))])
    store.fail([Failure("f", "one"), Failure("f", "two")])
    assert store.failures()["f"].reason == "two"
    assert store.remove(["c", "c", "f", "f"]) == 1 and len(store) == 0
    assert list(store.check()) == []


def test_a_transaction_is_one_commit_or_none(store: SqliteStore) -> None:
    start = store.generation
    with store.transaction():
        store.upsert([row("a")])
        store.fail([Failure("f", "broken")])
    assert store.generation == start + 1
    with pytest.raises(RuntimeError), store.transaction():
        store.remove(["a"])
        raise RuntimeError
    assert store.generation == start + 1 and len(store) == 1


def test_a_reader_sees_one_generation_while_another_writes(store: SqliteStore) -> None:
    store.upsert([row("a")])
    with SqliteStore.open(store.address) as reader, reader.snapshot():
        before = reader.generation
        store.upsert([row("b")])
        assert (reader.generation, len(reader)) == (before, 1)
    assert len(store) == 2


def test_the_second_writer_is_told_who_the_first_is(store: SqliteStore) -> None:
    script = f"""
import crow.search.sqlite as s
with s.SqliteStore.open({store.address!r}) as store:
    with store.writer():
        print("writing", flush=True); input()
"""
    command = [sys.executable, "-c", script]
    environment = os.environ | {"PYTHONPATH": str(Path(database.__file__).parents[2])}
    with subprocess.Popen(command, stdin=-1, stdout=-1, text=True, env=environment) as other:
        assert other.stdin and other.stdout and other.stdout.readline() == "writing\n"
        with pytest.raises(StoreBusy, match=f"process {other.pid} on .* is writing"):
            store.upsert([row("a")])
        assert len(store) == 0  # reading goes on
        other.kill()
    store.upsert([row("a")])  # its lock died with it


def test_threads_of_one_process_are_told_too_and_may_all_read(store: SqliteStore) -> None:
    told: list[object] = []

    def write() -> None:
        told.append(len(store))
        try:
            store.upsert([row("b")])
        except StoreBusy as error:
            told.append(str(error))

    with store.transaction():
        store.upsert([row("a")])
        thread = threading.Thread(target=write)
        thread.start()
        thread.join()
    assert told[0] == 0 and f"process {os.getpid()}" in str(told[1])


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
def test_a_full_disk_keeps_nobody_from_the_lock_nor_in_it(store: SqliteStore) -> None:
    lock = Path(store.address) / "writer.lock"
    lock.unlink(missing_ok=True)
    lock.symlink_to("/dev/full")  # takes a lock, but not a byte
    for _ in range(2):
        with store.writer(), pytest.raises(StoreBusy), SqliteStore.open(store.address) as second, second.writer():
            pass
    lock.unlink()
    lock.symlink_to("/nowhere/at all")
    with pytest.raises(StoreError, match="this index cannot be written"):
        store.remove(["a"])


def test_damage_is_found_and_named(store: SqliteStore) -> None:
    store.upsert([row("a"), row("b"), row("c")])
    store.close()
    with sqlite3.connect(Path(store.address) / "index.sqlite") as db:
        vector = bytearray(db.execute("SELECT vector FROM vectors WHERE id = 1").fetchone()[0])
        vector[5] ^= 1
        db.execute("UPDATE vectors SET vector = ? WHERE id = 1", (bytes(vector),))
        db.execute("UPDATE images SET width = 99 WHERE path = ?", (b"b",))
        db.execute("DELETE FROM vectors WHERE id = 3")
    db.close()
    with SqliteStore.open(store.address) as again:
        problems = dict(again.check())
    assert "checksum" in problems["a"] and "checksum" in problems["b"] and "vector is gone" in problems["c"]


def test_a_damaged_row_becomes_no_answer(store: SqliteStore) -> None:
    store.upsert([row("a"), row("b")])
    store._run("UPDATE images SET taken = '1999' WHERE path = ?", (b"a",))
    for read in (
        lambda: store.get(["a"]),
        lambda: store.rows([1]),
        lambda: store.vectors(),
        lambda: store.vectors([1]),
    ):
        with pytest.raises(StoreError, match="the row of a is damaged; crow verify --repair removes it"):
            read()
    assert list(store.get(["b"])) == ["b"] and list(dict(store.check())) == ["a"]


@pytest.mark.parametrize("what", ["date", "path"])
def test_a_filter_hides_nothing_that_damage_touched(store: SqliteStore, what: str) -> None:
    """In the pictures themselves and in the list that finds them; bytes that nothing uses any more may change."""
    with store.writer():
        ids = store.upsert(row(f"/a/{i}.jpg", taken=f"2019-01-01T00:00:{i:02}") for i in range(10)).tolist()
    store.close()
    file, told = store.folder / "index.sqlite", 0
    mark, turned = {"date": (b"2019-01-01T00:00:07", 2), "path": (b"/a/7.jpg", 1)}[what]
    whole = file.read_bytes()
    for start in (i for i in range(len(whole)) if whole.startswith(mark, i)):
        place = start + turned
        file.write_bytes(whole[:place] + b"\xff" + whole[place + 1 :])
        with SqliteStore.open(store.folder) as damaged:
            try:
                found = damaged.ids(under="/a") if what == "path" else damaged.ids(after="2019", before="2020")
                assert found.tolist() == ids
            except StoreError as error:
                assert "the index is damaged" in str(error)
                told += 1
    assert told == 2


def test_a_damaged_state_is_named(store: SqliteStore) -> None:
    with sqlite3.connect(store.folder / "index.sqlite") as db:
        db.execute("PRAGMA writable_schema = 1")
        db.execute("UPDATE sqlite_master SET sql = replace(sql, ' NOT NULL', '') WHERE name = 'state'")
    db.close()
    with sqlite3.connect(store.folder / "index.sqlite") as db:
        db.execute("UPDATE state SET generation = NULL")
    db.close()
    with SqliteStore.open(store.folder) as damaged, pytest.raises(StoreError, match="generation cannot be read"):
        _ = damaged.generation


def test_damaged_settings_are_refused(store: SqliteStore) -> None:
    store.configure(policy="none")
    store._run("UPDATE settings SET value = '\"self\"' WHERE name = 'policy'")
    with pytest.raises(StoreError, match=r"the settings \(recipe, whitening, ...\) are not what was written"):
        store.settings()


def test_what_is_no_index_is_refused_by_name(tmp_path: Path, store: SqliteStore) -> None:
    with pytest.raises(StoreError, match="no index is there"):
        SqliteStore.open(tmp_path / "none.crow")
    with pytest.raises(StoreError, match="is there already"):
        SqliteStore.create(store.address)
    with pytest.raises(StoreError, match="no store named 'lance'; there are: sqlite"):
        store_at("lance://x")
    assert store_at(store.address) is SqliteStore
    other = tmp_path / "other.crow"
    other.mkdir()
    (other / "index.sqlite").write_bytes(b"not a database at all" * 1000)
    with pytest.raises(StoreError, match=r"other.crow: the index is damaged"):
        SqliteStore.open(other)
    (other / "index.sqlite").unlink()
    with sqlite3.connect(other / "index.sqlite") as db:
        db.execute("PRAGMA user_version = 1")
    db.close()
    with pytest.raises(StoreError, match="not an index of crow"):
        SqliteStore.open(other)


def test_an_older_schema_is_brought_up_and_a_newer_one_refused(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.upsert([row("a")])
    store.close()
    with monkeypatch.context() as patch:
        patch.setattr(database, "MIGRATIONS", [*database.MIGRATIONS, "ALTER TABLE images ADD COLUMN note TEXT"])
        with SqliteStore.open(store.address) as newer:
            assert newer._run("SELECT note FROM images") == [(None,)] and len(newer) == 1
    with pytest.raises(StoreError, match="a newer crow wrote this index"):
        SqliteStore.open(store.address)


@pytest.mark.parametrize("wrong", [b"CREATE TABLE `mages (", b"CREATE TABLE\xcbimages ("])
def test_a_damaged_schema_is_named_in_one_line(store: SqliteStore, wrong: bytes) -> None:
    store.close()
    file = Path(store.address) / "index.sqlite"
    data = file.read_bytes()
    file.write_bytes(data.replace(b"CREATE TABLE images (", wrong))
    with pytest.raises(StoreError, match=r"^[^\n]*a\.crow: the index is damaged \([^\n]*\)[^\n]*$"):
        SqliteStore.open(store.address)


def test_an_index_of_the_first_schema_keeps_why_files_failed(tmp_path: Path) -> None:
    shutil.copytree(Path(__file__).parent / "old" / "schema-1.crow", tmp_path / "a.crow")
    with SqliteStore.open(tmp_path / "a.crow") as store:
        assert store.failures() == {"/photos/broken.jpg": Failure("/photos/broken.jpg", "a truncated JPEG file", 7, 8)}
        assert list(store.check()) == [] and len(store)


def test_a_network_filesystem_gets_a_rollback_journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mounts = tmp_path / "mountinfo"
    share = tmp_path / "my share"
    share.mkdir()
    escaped = str(share).replace(" ", r"\040")
    mounts.write_text(f"1 0 8:1 / / rw - ext4 /dev/a rw\n2 1 0:5 / {escaped} rw shared:1 - nfs4 host:/x rw\n")
    assert is_network(share, mounts) and is_network(share / "deeper", mounts) and not is_network(tmp_path, mounts)
    assert not is_network(share, tmp_path / "none")
    monkeypatch.setattr(database, "is_network", lambda folder: True)
    with SqliteStore.create(share / "a.crow") as store:
        assert store._run("PRAGMA journal_mode") == [("delete",)]
        store.upsert([row("a")])
    monkeypatch.undo()
    with SqliteStore.open(share / "a.crow") as store:
        assert store._run("PRAGMA journal_mode") == [("wal",)] and store._run("PRAGMA synchronous") == [(2,)]
        assert len(store) == 1


def test_a_backup_is_consistent_and_its_own(store: SqliteStore, tmp_path: Path) -> None:
    store.upsert([row("a")])
    store.backup(tmp_path / "copy.crow")
    store.upsert([row("b")])
    with SqliteStore.open(tmp_path / "copy.crow") as copy:
        assert list(copy.stamps()) == ["a"] and list(copy.check()) == []
        assert copy.settings()["uuid"] != store.settings()["uuid"]
    with pytest.raises(StoreError, match="is there already"):
        store.backup(tmp_path / "copy.crow")
