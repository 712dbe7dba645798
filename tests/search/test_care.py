"""Care: damage of every kind is found, named and repaired; what goes out comes back; near-duplicates are found."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
from tiny import Tiny, paint

from crow.recipe import RECIPES
from crow.search import care
from crow.search.index import Index
from crow.search.matrix import SearchError
from crow.search.store import Failure, Row, StoreError

Photos = Callable[..., Path]


@pytest.fixture
def index(tmp_path: Path, tiny: Tiny, photos: Photos):
    with Index.create(tmp_path / "a.crow", describer=tiny) as index:
        index.sync(photos(40))
        yield index


def damage(index: Index, sql: str, *values: object) -> None:
    with sqlite3.connect(Path(index.store.address) / "index.sqlite") as db:
        assert db.execute(sql, values).rowcount > 0
    db.close()


def test_nothing_wrong_is_found_where_nothing_is(index: Index) -> None:
    assert care.verify(index) == []
    index.rewhiten(5)
    assert care.verify(index) == []


@pytest.mark.parametrize(
    ("sql", "what"),
    [
        ("UPDATE vectors SET vector = zeroblob(64) WHERE id = 7", "checksum"),
        ("UPDATE vectors SET vector = substr(vector, 1, 60) WHERE id = 7", "checksum"),
        ("UPDATE images SET taken = '1900' WHERE id = 7", "checksum"),
        ("DELETE FROM vectors WHERE id = 7", "vector is gone"),
    ],
)
def test_a_damaged_row_is_named_and_described_again(index: Index, tiny: Tiny, sql: str, what: str) -> None:
    (row,) = index.store.rows([7])
    assert row is not None
    damage(index, sql)
    assert next((p.where, what in p.what) for p in care.verify(index)) == (row.path, True)
    assert all(p.repaired for p in care.verify(index, repair=True))
    assert care.verify(index) == [] and len(index) == 39
    assert index.sync().added == 1
    np.testing.assert_allclose(index.vectors([row.path])[0], tiny(row.path)[0], atol=1e-6)


@pytest.mark.parametrize(
    "sql", ["SET reason = 'a better one'", "SET mtime = mtime + 1", "SET path = CAST('/b' AS BLOB)"]
)
def test_a_damaged_reason_is_never_told_and_goes_with_repair(index: Index, sql: str) -> None:
    index.store.fail([Failure("/a", "not a picture", 3, 4), Failure("/z", "empty", 5, 6)])
    damage(index, f"UPDATE failures {sql} WHERE path = CAST('/a' AS BLOB)")
    with pytest.raises(StoreError, match="a reason why a file failed is not what was written"):
        index.store.failures()
    (problem,) = care.verify(index, repair=True)
    assert problem.repaired and problem.where in ("/a", "/b") and "checksum" in problem.what
    assert care.verify(index) == [] and [f.reason for f in index.store.failures().values()] == ["empty"]


@pytest.mark.parametrize("sql", ["UPDATE settings SET name = 'x' WHERE name = 'checksum'", "DELETE FROM settings"])
def test_settings_without_their_checksum_are_not_believed(index: Index, sql: str) -> None:
    damage(index, sql)
    with pytest.raises(StoreError, match=r"a\.crow: the settings .* are not what was written"):
        Index.open(index.store.address)


def test_a_damaged_whitening_is_found(index: Index) -> None:
    index.rewhiten(5)
    with sqlite3.connect(Path(index.store.address) / "index.sqlite") as db:
        (data,) = db.execute("SELECT value FROM settings WHERE name = 'whitening'").fetchone()
        spoilt = data[:-9] + bytes([data[-9] ^ 1]) + data[-8:]
        db.execute("UPDATE settings SET value = ? WHERE name = 'whitening'", (spoilt,))
    db.close()
    assert any("settings" in p.what and "checksum" in p.what for p in care.verify(index))


def test_a_vector_that_no_recipe_makes_is_found(index: Index) -> None:
    (row,) = index.store.rows([7], vectors=True)
    assert row is not None and row.vector is not None
    index.store.upsert([type(row)(row.path, row.vector * 2)])
    (problem,) = care.verify(index)
    assert problem.where == row.path and "length 2 instead of 1" in problem.what


def test_a_matrix_that_is_not_the_stores_is_found_and_made_anew(index: Index) -> None:
    (file,) = (Path(index.store.address) / "matrix").glob("*.rows")
    data = bytearray(file.read_bytes())
    data[3] ^= 0x10
    file.write_bytes(data)
    index.derived.forget()
    assert {p.where for p in care.verify(index)} == {"matrix"}
    assert all(p.repaired for p in care.verify(index, repair=True))
    assert care.verify(index) == []


@pytest.mark.parametrize("table", ["images", "vectors"])
@pytest.mark.parametrize("how", ["swapped", "doubled"])
def test_a_damaged_tree_neither_hides_rows_nor_is_read_for_ever(tmp_path: Path, table: str, how: str) -> None:
    vectors = np.random.default_rng(1).standard_normal((2000, 64)).astype(np.float32)
    with Index.create(tmp_path / "a.crow", "crow", whitening="none") as index:
        index.store.upsert(Row(f"/{i}.jpg", vector / np.linalg.norm(vector)) for i, vector in enumerate(vectors))
    damage_tree(tmp_path / "a.crow" / "index.sqlite", table, how)
    with Index.open(tmp_path / "a.crow") as damaged:
        with pytest.raises(StoreError, match=r"damaged"):
            for _ in islice(damaged.store.chunks(rows=100), 50):
                pass
        with pytest.raises(StoreError, match=r"damaged"):
            damaged.store.rows(range(1, 2001))
        assert 0 < len(list(islice(damaged.store.check(), 5000))) < 5000
        with pytest.raises((StoreError, SearchError)):
            damaged.search(vectors[0])


def damage_tree(file: Path, table: str, how: str) -> None:
    """Let a table's first branch change places with its last, or be its second one, too (SQLite's file format, 1.6)."""
    with sqlite3.connect(file) as db:
        (root,) = db.execute("SELECT rootpage FROM sqlite_master WHERE name = ?", (table,)).fetchone()
        (size,) = db.execute("PRAGMA page_size").fetchone()
    db.close()
    data = bytearray(file.read_bytes())
    page = memoryview(data)[(root - 1) * size : root * size]
    assert page[0] == 5 and page[4] > 1  # the inside of a table's tree, and it has more than two branches
    first, second = (int.from_bytes(page[at : at + 2], "big") for at in (12, 14))
    if how == "doubled":
        page[first : first + 4] = bytes(page[second : second + 4])
    else:
        page[8:12], page[first : first + 4] = bytes(page[first : first + 4]), bytes(page[8:12])
    file.write_bytes(data)


def test_commits_that_the_matrix_has_seen_cannot_be_lost_unnoticed(index: Index, tmp_path: Path) -> None:
    index.close()
    address = tmp_path / "a.crow"
    before = (address / "index.sqlite").read_bytes()
    with Index.open(address, describer=Tiny()) as changed:
        paint(tmp_path / "photos" / "new.png", 1000)
        assert changed.sync().added == 1
    (address / "index.sqlite").write_bytes(before)  # as after a log that lost its last commits
    with Index.open(address, describer=Tiny()) as older:
        with pytest.raises(
            StoreError, match=r"the last commits are lost; crow verify --repair goes on with what is left"
        ):
            older.search(tmp_path / "photos" / "1.png")
        (problem,) = care.verify(older)
        assert "the last commits are lost" in problem.what
        assert [p.repaired for p in care.verify(older, repair=True)] == [False]
        assert care.verify(older) == [] and len(older.search(tmp_path / "photos" / "1.png")) == 10
        assert older.sync().added == 1


@pytest.mark.parametrize("kind", ["*.faiss", "*.ids", "approximate.json"])
def test_a_damaged_approximate_index_is_not_used_but_named_and_built_again(
    index: Index, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("crow.search.approximate.LEAST", 32)
    index.approximate("hnsw")
    index.derived.build()
    query = np.ones(16, np.float32)
    expected = [(h.path, h.score) for h in index.search(query, approx=True)]
    (file,) = (Path(index.store.address) / "matrix").glob(kind)
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
    index.derived.forget()
    with pytest.raises(SearchError, match="no approximate search was built"):
        index.search(query, approx=True)
    assert [(p.where, file.name in p.what) for p in care.verify(index)] == [("matrix", True)]
    assert all(p.repaired for p in care.verify(index, repair=True)) and care.verify(index) == []
    assert [(h.path, h.score) for h in index.search(query, approx=True)] == expected


def test_a_matrix_is_only_derived(index: Index, tmp_path: Path) -> None:
    query = tmp_path / "photos" / "5.png"
    expected = [(h.path, h.score) for h in index.search(query)]
    matrix = Path(index.store.address) / "matrix"
    for spoil in (Path.unlink, lambda file: file.write_bytes(b""), lambda file: file.write_bytes(b"{}")):
        for file in matrix.iterdir():
            spoil(file)
        index.derived.forget()
        assert [(h.path, h.score) for h in index.search(query)] == expected
    index.save_matrix()
    assert care.verify(index) == []


@pytest.mark.parametrize("name", ["x.npz", "x.parquet"])
def test_what_is_exported_comes_back(index: Index, tmp_path: Path, name: str) -> None:
    if name.endswith("parquet"):
        pytest.importorskip("pyarrow")
    strange = paint(tmp_path / "photos" / "caf\udce9\n.png", 77)
    index.sync()
    assert care.export(index, tmp_path / name) == 41
    with Index.create(tmp_path / "b.crow", index.recipe) as other:
        assert care.import_(other, tmp_path / name) == 41
        assert care.import_(other, tmp_path / name) == 41  # again changes nothing
        a, b = ({p: (s.size, s.mtime, s.sha256) for p, s in i.store.stamps().items()} for i in (index, other))
        assert a == b and str(strange) in b
        np.testing.assert_array_equal(other.store.vectors(), index.store.vectors())
        assert care.verify(other) == []
    with Index.create(tmp_path / "c.crow", RECIPES["gem"]) as other:
        with pytest.raises(SearchError, match=r"made with crow, the index with gem \(pool"):
            care.import_(other, tmp_path / name)
        with pytest.raises(SearchError, match="no such file"):
            care.import_(other, tmp_path / "none.npz")
        (tmp_path / f"bad{name[1:]}").write_bytes(b"something else")
        with pytest.raises(SearchError, match="not what crow export writes"):
            care.import_(other, tmp_path / f"bad{name[1:]}")
    with pytest.raises(SearchError, match=r"ending in \.npz or \.parquet"):
        care.export(index, tmp_path / "x.csv")


def test_near_duplicates_are_the_connected_groups(index: Index, tmp_path: Path, tiny: Tiny) -> None:
    paths = sorted(str(p) for p in (tmp_path / "photos").iterdir())
    for score in (0.7, 0.9, 0.99):
        alike = tiny(paths) @ tiny(paths).T >= score
        reach = np.linalg.matrix_power(alike.astype(float), 40) > 0  # whoever is reached over others
        expected = {tuple(paths[j] for j in np.flatnonzero(row)) for row in reach if row.sum() > 1}
        assert {tuple(group) for group in care.duplicates(index, score)} == expected
    assert care.duplicates(index, 0.5, under=tmp_path / "nothing") == []


def test_info_says_what_is_there(index: Index) -> None:
    said = care.info(index)
    assert (said["pictures"], said["recipe"], said["dim"], said["policy"]) == (40, "crow", 16, "auto")
    assert said["bytes"] > 40 * 64 and said["whitening"] is None


def test_a_damaged_file_is_noticed_and_what_can_be_read_is_saved(index: Index, tmp_path: Path, photos: Photos) -> None:
    photos(400)
    index.sync()
    index.close()
    file = tmp_path / "a.crow" / "index.sqlite"
    data = bytearray(file.read_bytes())
    pages = len(data) // 16384
    assert pages > 8
    for page in (pages // 2, pages - 2):
        data[page * 16384 + 8 : page * 16384 + 8000] = bytes(7992)
    file.write_bytes(data)
    with Index.open(file.parent, describer=Tiny()) as damaged:
        assert care.verify(damaged) != []
        damaged.store.salvage(tmp_path / "b.crow").close()
    with Index.open(tmp_path / "b.crow", describer=Tiny()) as saved:
        assert care.verify(saved) == [] and 0 < len(saved) < 400
        report = saved.sync(tmp_path / "photos")
        assert report.unchanged + report.moved + report.added == 400
