"""The store on a real Milvus server: the same rows, answers and refusals as the store on one machine."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from servers import Milvus
from tiny import Tiny, paint
from together import meet, rows_by, whiten, write, write_and_die
from typer.testing import CliRunner

from crow.app.cli import app
from crow.framework.reduce import Whitening
from crow.recipe import RECIPES
from crow.search.care import verify
from crow.search.index import Index
from crow.search.matrix import SearchError
from crow.search.milvus import MilvusStore
from crow.search.milvus_rows import read_path, stored_path
from crow.search.milvus_server import Place
from crow.search.store import Failure, Row, StoreError

RANDOM = np.random.default_rng(3)
LONG = bool(os.environ.get("CROW_SCALE"))
ROUNDS, PROCESSES = 20 if LONG else 2, 4
STEP = 1 if LONG else 3  # between the changes before which a maker is killed
UNDECODABLE = os.fsdecode(b'/pictures/caf\xe9\n\xff"\\%_.jpg')
PRIVATE = "/pictures/\uf7a0.jpg"


def row(path: str, **more: Any) -> Row:
    return Row(path, RANDOM.standard_normal(8).astype(np.float32), sha256=path.encode("utf-8", "replace"), **more)


@pytest.fixture
def store(address: str) -> Iterator[MilvusStore]:
    store = MilvusStore.create(address, recipe={"name": "crow"}, whitening=b"\0\1" * 100_000)
    yield store
    store.close()


def test_everything_comes_back_as_it_was(store: MilvusStore) -> None:
    rows = [
        row("/a b/1.jpg", size=5, mtime=7, width=3, height=4, taken="2024-05-06T12:13:14"),
        row(UNDECODABLE),
        row(PRIVATE),
    ]
    ids = store.upsert(rows)
    before = store.generation
    assert store.upsert(rows).tolist() == ids.tolist() and store.generation > before  # a retried write changes nothing
    again = MilvusStore.open(store.address)
    found = again.get([r.path for r in rows], vectors=True)
    for r, i in zip(rows, ids, strict=True):
        back = found[r.path]
        assert (back.path, back.size, back.mtime, back.sha256, back.width, back.height, back.taken, back.id) == (
            r.path, r.size, r.mtime, r.sha256, r.width, r.height, r.taken, i,
        )  # fmt: skip
        np.testing.assert_array_equal(back.vector, r.vector)
    settings = again.settings()
    assert (
        settings["whitening"] == b"\0\1" * 100_000 and settings["recipe"] == {"name": "crow"} and settings["dim"] == 8
    )
    order = RANDOM.permutation(3)
    np.testing.assert_array_equal(again.vectors(ids[order]), np.stack([rows[i].vector for i in order]))
    assert np.concatenate([i for i, _ in again.chunks()]).tolist() == sorted(ids.tolist())
    parts = [(i, v) for part in [(0, 1 << 52), (1 << 52, 1 << 53)] for i, v in again.chunks(part=part)]
    assert np.concatenate([i for i, _ in parts]).tolist() == sorted(ids.tolist())
    with pytest.raises(StoreError, match="no picture has the id 1"):
        again.vectors(np.array([1]))
    assert list(again.check()) == []
    again.close()


def test_many_processes_make_one_collection_together(address: str) -> None:
    """Each finds no pictures there, and makes the collection while the others do; then each whitens it, as the others do."""
    spawn = get_context("spawn")
    with spawn.Pool(PROCESSES, meet, (spawn.Barrier(PROCESSES),)) as pool:
        for number in range(ROUNDS):
            place = f"{address}_{number}"
            with Index.create(place, "crow", whitening="none") as index:
                asked = [(place, process) for process in range(PROCESSES)]
                assert pool.starmap(write, asked, chunksize=1) == [""] * PROCESSES
                expected = {row.path for process in range(PROCESSES) for row in rows_by(process)}
                assert set(index.store.stamps()) == expected and verify(index) == []
                settings = index.store.settings()
                assert (settings["dim"], settings["engine"], settings["recipe"]["name"]) == (8, "any", "crow")
                assert pool.map(whiten, [place] * PROCESSES, chunksize=1) == [""] * PROCESSES
                assert verify(index) == [] and index.vectors(["/0/3.jpg"]).shape == (1, 4)
    print(f"\n{ROUNDS} collections, each made and whitened by {PROCESSES} processes at the same moment")


def test_what_a_killed_maker_left_is_made_whole(address: str) -> None:
    """Killed before the first change that it asks of the server, before a later one, and so on, until it lives to the end."""
    change, killed, status = 1, 0, -9
    while status == -9:
        place = f"{address}_{change}"
        maker = get_context("spawn").Process(target=write_and_die, args=(place, change))
        maker.start()
        maker.join()
        status = maker.exitcode or 0
        assert status in (0, -9)
        store = MilvusStore.open(place) if MilvusStore.exists(place) else MilvusStore.create(place)
        store.upsert(rows_by(1))
        assert {row.path for row in rows_by(1)} <= set(store.stamps()) and len(store) in (30, 60)
        assert list(store.check()) == [] and store.settings()["dim"] == 8
        assert sorted(store.server("list_indexes", store.raw)) == ["id", "vector"]
        store.close()
        change, killed = change + STEP, killed + (status == -9)
    assert killed > 10 / STEP
    print(
        f"\nof {killed + 1} makers {killed} were killed, each before another change; the next one made every collection whole"
    )


def test_a_collection_that_was_loaded_before_its_indexes_were_made(store: MilvusStore) -> None:
    """As two makers at once left it before they knew of each other."""
    store.make_raw(8)
    server = store.server
    server("release_collection", store.raw)
    server.client.drop_index(store.raw, "id")
    server("load_collection", store.raw)
    server.client.drop_alias(store.place.name)
    store.upsert([row("a")])
    assert sorted(server("list_indexes", store.raw)) == ["id", "vector"]
    assert list(store.check()) == [] and len(store) == 1


def test_updates_moves_removals_and_failures(store: MilvusStore) -> None:
    a, b, c = store.upsert(rows := [row("a"), row("b"), row("c")])
    (changed,) = store.upsert([Row("a", rows[1].vector, sha256=b"other")])
    assert changed != a  # an id names one vector for ever
    store.move([Row("b", id=int(changed)), Row("a", id=int(b))])  # two that change places
    found = store.get(["a", "b"], vectors=True)
    assert (found["b"].id, found["a"].id) == (changed, b)
    store.move([Row("d", id=int(c), size=9)])
    assert set(store.stamps()) == {"a", "b", "d"} and store.stamps()["d"].size == 9
    assert store.remove(["a", "not there"]) == 1
    store.fail([Failure("b", "cut short", 3, 4), Failure(UNDECODABLE, "broken")])
    assert len(store) == 1 and store.failures()["b"] == Failure("b", "cut short", 3, 4)
    assert set(store.failures(["b", "d"])) == {"b"} and UNDECODABLE in store.failures()
    store.upsert([rows[1]])
    assert len(store) == 2 and set(store.failures()) == {UNDECODABLE}
    assert [r and r.path for r in store.rows([c, 5])] == ["d", None]
    for bad in (np.full(8, np.nan), np.zeros(8), np.ones(7)):
        with pytest.raises(StoreError, match=r"bad\.jpg: "):
            store.upsert([Row("bad.jpg", bad.astype(np.float32))])
    assert list(store.check()) == []


def test_programs_can_be_started_beside_a_connection(store: MilvusStore) -> None:
    """As Ray starts its own, with something to do between fork and exec; in a process that nobody prepared for it."""
    program = (
        "import os, subprocess, sys; from crow.search.milvus import MilvusStore; store = MilvusStore.open(sys.argv[1])\n"
        "ends = [subprocess.run(['true'], preexec_fn=os.getpid).returncode for _ in range(300)]; sys.exit(any(ends))"
    )
    bare = {name: value for name, value in os.environ.items() if name != "GRPC_ENABLE_FORK_SUPPORT"}
    subprocess.run([sys.executable, "-c", program, store.address], env=bare, check=True)


@pytest.mark.parametrize("path", ["/a/é.jpg", UNDECODABLE, PRIVATE, "/\uf780\udc80\uf7ff", "/\U0001f4f7.png"])
def test_any_path_survives_as_text(path: str) -> None:
    stored_path(path).encode()  # valid Unicode
    assert read_path(stored_path(path)) == path


def test_the_same_answers_as_on_one_machine(address: str, tmp_path: Path) -> None:
    """By hand and by folder and by date, whitened or not, expanded or not: the same pictures in the same order."""
    days = [f"20{10 + i % 10}-0{1 + i % 9}-01T00:00:00" if i % 3 else None for i in range(400)]
    vectors = RANDOM.standard_normal((400, 16)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    rows = [Row(f"/p/{'é' if i % 2 else 'b'}/{i}.jpg", v, taken=days[i]) for i, v in enumerate(vectors)]
    asked = [
        {},
        {"under": "/p/é"},
        {"after": "2014", "before": "2017-05"},
        {"under": "/p/b", "before": "2013", "expand": 5},
    ]
    compared = 0
    with Index.create(address, "crow") as there, Index.create(tmp_path / "a.crow", "crow") as here:
        for index in (there, here):
            index.store.upsert(rows)
        for dim in (None, 8):
            if dim:
                fitted = [index.rewhiten(dim, "self") for index in (there, here)]
                assert fitted[0] and fitted[1]
                np.testing.assert_allclose(fitted[0].projection, fitted[1].projection, rtol=1e-6, atol=1e-9)
            for filters in asked:
                for query in (
                    rows[7].path,
                    RANDOM.standard_normal(16).astype(np.float32),
                    [rows[1].path, rows[2].path],
                ):
                    one, other = there.search(query, 25, **filters), here.search(query, 25, **filters)  # type: ignore[arg-type]
                    assert [hit.path for hit in one] == [hit.path for hit in other] and len(one) > 5
                    np.testing.assert_allclose([h.score for h in one], [h.score for h in other], atol=1e-6)
                    compared += 1
        assert verify(there) == []
    print(f"\n{compared} searches gave the same pictures in the same order on Milvus and on SQLite")


def test_rewhitening_while_others_search_and_write(address: str) -> None:
    vectors = RANDOM.standard_normal((1500, 16)).astype(np.float32)
    rows = [Row(f"/p/{i}.jpg", v / np.linalg.norm(v)) for i, v in enumerate(vectors)]
    wrong: list[Any] = []
    answers, stop = [0], threading.Event()

    def search() -> None:
        with Index.open(f"{address}?consistency=bounded") as reader:
            while not stop.is_set():
                try:
                    hits = reader.search(rows[5].path, 5)
                except Exception as error:
                    wrong.append(error)
                    return
                answers[0] += 1
                if not hits or hits[0].path != rows[5].path or len(hits) != 5:
                    wrong.append(hits)

    with Index.create(address, "crow", whitening="none") as index, Index.open(address) as writer:
        index.store.upsert(rows[:1000])
        thread = threading.Thread(target=search)
        thread.start()
        adding = threading.Thread(target=lambda: [writer.store.upsert(rows[i : i + 50]) for i in range(1000, 1500, 50)])
        adding.start()
        for dim in (4, 12):
            learned = index.rewhiten(dim, "self")
        adding.join()
        index.derived.save()
        stop.set()
        thread.join()
        assert not wrong, wrong
        assert answers[0] > 3
        assert len(index) == 1500 and verify(index) == []
        assert learned and index.vectors(["/p/1200.jpg"]).shape == (1, 12)
        collections = [c for c in index.store.server.client.list_collections() if c.startswith(index.store.place.name)]
        assert len(collections) == 3  # the old ones are gone
    print(f"\n{answers[0]} searches were answered while it was whitened twice, none of them wrong")


def test_what_differs_is_found_and_repaired(address: str) -> None:
    vectors = RANDOM.standard_normal((60, 16)).astype(np.float32)
    with Index.create(address, "crow") as index:
        index.store.upsert(Row(f"/p/{i}.jpg", v / np.linalg.norm(v)) for i, v in enumerate(vectors))
        index.rewhiten(8, "self")
        collection, _ = index.store.searched()
        server = index.store.server
        (lost, bad) = server.query(index.store.raw, 'path == "/p/3.jpg" or path == "/p/4.jpg"', ["*"])
        server("delete", collection, ids=[lost["pk"]])
        server("upsert", index.store.raw, [{**bad, "size": 77, "vector": bad["vector"]}])
        what = {problem.where: problem.what for problem in verify(index)}
        assert "checksum" in what[bad["path"]]
        verify(index, repair=True)
        assert verify(index) == [] and len(index) == 59


@pytest.mark.parametrize("kind", ["hnsw", "ivf-pq"])
def test_approximate_kinds_say_what_they_find(address: str, kind: str) -> None:
    vectors = RANDOM.standard_normal((2500, 16)).astype(np.float32)
    with Index.create(address, "crow") as index:
        index.store.upsert(Row(f"/p/{i}.jpg", v / np.linalg.norm(v)) for i, v in enumerate(vectors))
        index.approximate(kind)
        (note,) = index.derived.save()
        assert float(note.split()[-1]) > 0.5
        assert index.search("/p/7.jpg", 3)[0].path == "/p/7.jpg"
        with pytest.raises(SearchError, match=f"the index is {kind}"):
            index.search("/p/7.jpg", approx=False)
        with pytest.raises(StoreError, match="no index named 'annoy' on Milvus; there are: flat, hnsw"):
            index.approximate("annoy")


def test_from_the_command_line(address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for i in range(40):
        paint(tmp_path / "p" / f"{i}.png", i)
    monkeypatch.setattr("crow.extract.describer.Describer", lambda recipe, **options: Tiny(recipe))
    local = str(tmp_path / "a.crow")

    def crow(*words: object) -> str:
        result = CliRunner().invoke(app, [str(word) for word in words])
        assert result.exit_code == 0, result.output
        return result.output

    for place in (address, local):
        assert "40 added" in crow("index", tmp_path / "p", place, "--whiten", "none")
    query = tmp_path / "p" / "3.png"
    one, other = (crow("search", place, query, "-k", 5, "--json") for place in (address, local))
    assert one == other
    crow("rewhiten", address, "--dim", 4, "--whiten", "self")
    assert "all as they were written" in crow("verify", address)
    crow("export", address, tmp_path / "x.npz")
    crow("import", tmp_path / "b.crow", tmp_path / "x.npz")
    crow("whiten", address, tmp_path / "w.safetensors", "--dim", 4)
    assert Whitening.load(tmp_path / "w.safetensors").count == 40
    result = CliRunner().invoke(app, ["index", str(tmp_path / "p"), address, "--recipe", "gem"])
    assert "another recipe" in str(result.exception)


def test_what_cannot_be_used_is_named(milvus: Milvus, address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        with pytest.raises(
            StoreError, match=f"milvus://127.0.0.1:{nobody.getsockname()[1]}/x: Milvus cannot be reached"
        ):
            MilvusStore.open(f"milvus://u:secret@127.0.0.1:{nobody.getsockname()[1]}/x")
    with pytest.raises(StoreError, match="no index is there"):
        MilvusStore.open(address)
    for wrong, reason in (("/", "an address is milvus://"), ("/a-b", "letters"), ("/a?x=1", "no option named 'x'"), ("/a?consistency=late", "no consistency")):  # fmt: skip
        with pytest.raises(StoreError, match=reason):
            Place.of(milvus.address + wrong)
    assert (
        "secret" not in str(Place.of("milvus://u:secret@h:1/a"))
        and Place.of("milvus://u:secret@h:1/a").token == "u:secret"
    )
    Index.create(address, "crow").close()
    with pytest.raises(StoreError, match="is there already"):
        Index.create(address, "crow")
    with pytest.raises(SearchError, match="made with crow, not with gem"):
        Index.open(address, describer=Tiny(RECIPES["gem"]))
    monkeypatch.setattr("crow.search.milvus_server.OLDEST", (99, 0))
    with pytest.raises(StoreError, match=r"Milvus v2.3.5-lite is too old; 99.0"):
        MilvusStore.open(address)


def test_a_wrong_token_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server = Milvus(tmp_path, common_security_authorizationEnabled=True)
    try:
        server.start()
        place = f"127.0.0.1:{server.port}/x"
        for address in (f"milvus://root:wrong@{place}", f"milvus://{place}"):
            with pytest.raises(
                StoreError, match=f"milvus://{place}: Milvus refuses the connection: the token"
            ) as refused:
                MilvusStore.open(address)
            assert "wrong" not in str(refused.value)
        monkeypatch.setenv("CROW_MILVUS_TOKEN", "root:Milvus")
        with pytest.raises(StoreError, match="no index is there"):
            MilvusStore.open(f"milvus://{place}")
    finally:
        server.kill()


def test_the_page_over_a_server(address: str, tmp_path: Path) -> None:
    """The JSON interface of `crow serve` answers from Milvus, with ids that a browser's numbers hold."""
    testclient = pytest.importorskip("fastapi.testclient")
    from crow.app.serve.server import build

    for i in range(40):
        paint(tmp_path / "p" / f"{i}.png", i)
    with Index.create(address, describer=Tiny(), whitening="none") as index:
        index.sync(tmp_path / "p")
        app = build(index, thumbnails=tmp_path / "thumbnails", warm=False)
        with testclient.TestClient(app, base_url="http://localhost") as client:
            assert client.get("/api/v1/status").json()["pictures"] == 40
            browsed = client.get("/api/v1/pictures", params={"k": 40}).json()["hits"]
            assert len({hit["id"] for hit in browsed}) == 40 and max(hit["id"] for hit in browsed) < 2**53
            asked = browsed[7]
            found = client.get("/api/v1/search", params={"q": asked["id"], "k": 5}).json()
            expected = [hit.path for hit in index.search(asked["path"], 6)][1:]
            assert [hit["path"] for hit in found["hits"]] == expected
            assert client.get(f"/api/v1/pictures/{asked['id']}/thumbnail").status_code == 200
