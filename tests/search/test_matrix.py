"""The matrix against a plain dict, through random histories, crashes and damage."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crow.search import matrix as room
from crow.search.matrix import Matrix, SearchError
from crow.search.store import Changes

DIM = 6


class Plain:
    """A store as a dict, which remembers when each id came or went."""

    def __init__(self) -> None:
        self.generation, self.next = 0, 1
        self.here: dict[int, np.ndarray] = {}
        self.came: dict[int, int] = {}
        self.went: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self.here)

    def snapshot(self):
        return nullcontext()

    def add(self, count: int) -> None:
        self.generation += 1
        for _ in range(count):
            vector = np.random.default_rng(self.next).standard_normal(DIM)
            self.here[self.next] = (vector / np.linalg.norm(vector)).astype(np.float32)
            self.came[self.next] = self.generation
            self.next += 1

    def remove(self, ids: list[int]) -> None:
        self.generation += 1
        for number in ids:
            del self.here[number]
            self.went[number] = self.generation

    def changes(self, since: int) -> Changes:
        added = [i for i in self.here if self.came[i] > since]
        removed = sorted(i for i, generation in self.went.items() if generation > since)
        return Changes(np.array(added, np.int64), np.array(removed, np.int64), self.generation)

    def vectors(self, ids):
        return np.array([self.here[int(i)] for i in ids], np.float32).reshape(-1, DIM)


def same(matrix: Matrix, store: Plain) -> bool:
    ids = sorted(store.here)
    assert matrix.ids.tolist() == ids and len(matrix) == len(ids)
    expected = store.vectors(ids).astype(np.float16).astype(np.float32)
    return np.array_equal(matrix.vectors(np.array(ids, np.int64)), expected)


def unchanged(rows):
    return rows


@contextmanager
def blocks_of(rows: int) -> Iterator[None]:
    old, room.BLOCK = room.BLOCK, rows
    try:
        yield
    finally:
        room.BLOCK = old


HISTORY = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.integers(0, 40)),
        st.tuples(st.just("remove"), st.floats(0, 1)),
        st.tuples(st.just("save"), st.just(0)),
        st.tuples(st.just("reopen"), st.just(0)),
    ),
    max_size=30,
)


@settings(max_examples=60, deadline=None)
@given(HISTORY)
def test_any_history_leaves_what_a_dict_holds(tmp_path_factory, history):
    folder, store = tmp_path_factory.mktemp("matrix"), Plain()
    matrix = Matrix.load(folder, "k", DIM)
    with blocks_of(32):
        for action, amount in history:
            if action == "add":
                store.add(amount)
            elif action == "remove":
                ids = sorted(store.here)
                store.remove(ids[: int(amount * len(ids))])
            elif action == "save":
                matrix = matrix.catch_up(store, unchanged, folder).save(folder)
            else:
                matrix = Matrix.load(folder, "k", DIM)
            now = matrix.catch_up(store, unchanged)
            assert same(now, store)
        matrix.catch_up(store, unchanged, folder).save(folder)
        loaded = Matrix.load(folder, "k", DIM)
        assert loaded.generation == store.generation and same(loaded, store)
        assert not list(Matrix.problems(folder))
        for segment in loaded.segments:
            assert segment.alive >= (1 - room.DEAD) * len(segment) and len(segment) <= 32


def test_small_segments_are_joined_and_files_swept(tmp_path):
    store, matrix = Plain(), Matrix.load(tmp_path, "k", DIM)
    for _ in range(100):
        store.add(3)
        matrix = matrix.catch_up(store, unchanged, tmp_path).save(tmp_path)
    assert len(matrix.segments) <= 8  # as many as powers of two, not one per addition
    assert len(list(tmp_path.iterdir())) == len(matrix.segments) + 2


def test_an_older_store_put_back_starts_the_matrix_again(tmp_path):
    store = Plain()
    store.add(5)
    older = Plain()
    older.add(2)
    store.add(5)
    matrix = Matrix.load(tmp_path, "k", DIM).catch_up(store, unchanged).save(tmp_path)
    assert same(matrix.catch_up(older, unchanged), older)


def test_another_key_or_dimension_is_another_matrix(tmp_path):
    store = Plain()
    store.add(5)
    Matrix.load(tmp_path, "k", DIM).catch_up(store, unchanged).save(tmp_path)
    assert len(Matrix.load(tmp_path, "k", DIM)) == 5
    assert len(Matrix.load(tmp_path, "other", DIM)) == 0
    assert len(Matrix.load(tmp_path, "k", DIM + 1)) == 0
    assert len(Matrix.load(tmp_path / "nowhere", "k", DIM)) == 0


@pytest.mark.parametrize("damage", ["no segment", "short segment", "no manifest", "half a manifest", "no dead", "null"])
def test_damage_is_noticed_and_the_store_fills_the_matrix_again(tmp_path, damage):
    store = Plain()
    store.add(50)
    Matrix.load(tmp_path, "k", DIM).catch_up(store, unchanged).save(tmp_path)
    rows, dead, manifest = next(tmp_path.glob("*.rows")), next(tmp_path.glob("*.dead")), tmp_path / "manifest.json"
    if damage == "no segment":
        rows.unlink()
    elif damage == "short segment":
        rows.write_bytes(rows.read_bytes()[:-1])
    elif damage == "no manifest":
        manifest.unlink()
    elif damage == "half a manifest":
        manifest.write_text(manifest.read_text()[:40])
    elif damage == "no dead":
        dead.unlink()
    else:
        manifest.write_text(json.dumps(None))
    assert len(Matrix.load(tmp_path, "k", DIM)) == 0
    again = Matrix.load(tmp_path, "k", DIM).catch_up(store, unchanged, tmp_path).save(tmp_path)
    assert same(again, store) and same(Matrix.load(tmp_path, "k", DIM), store)


@pytest.mark.parametrize("kind", ["*.rows", "*.dead", "manifest.json"])
def test_no_flipped_bit_is_answered_with(tmp_path, kind):
    store = Plain()
    store.add(20)
    Matrix.load(tmp_path, "k", DIM).catch_up(store, unchanged).save(tmp_path)
    file = next(tmp_path.glob(kind))
    data = file.read_bytes()
    for at in range(0, len(data), max(1, len(data) // 40)):
        file.write_bytes(data[:at] + bytes([data[at] ^ 2]) + data[at + 1 :])
        loaded = Matrix.load(tmp_path, "k", DIM)
        assert len(loaded) == 0 or same(
            loaded, store
        )  # turned inside the name of a field, it can be an older version's
        assert len(loaded) or list(Matrix.problems(tmp_path))


def test_a_flipped_bit_is_found(tmp_path):
    store = Plain()
    store.add(50)
    Matrix.load(tmp_path, "k", DIM).catch_up(store, unchanged).save(tmp_path)
    rows = next(tmp_path.glob("*.rows"))
    data = bytearray(rows.read_bytes())
    data[100] ^= 4
    rows.write_bytes(data)
    assert "its bytes are not" in next(Matrix.problems(tmp_path))
    assert len(Matrix.load(tmp_path, "k", DIM)) == 0


def test_a_reader_keeps_its_rows_while_a_writer_compacts(tmp_path):
    store = Plain()
    store.add(50)
    reader = Matrix.load(tmp_path, "k", DIM).catch_up(store, unchanged).save(tmp_path)
    before = reader.vectors(reader.ids)
    store.remove(list(range(1, 40)))
    Matrix.load(tmp_path, "k", DIM).catch_up(store, unchanged, tmp_path).save(tmp_path)
    assert np.array_equal(reader.vectors(reader.ids), before)


def test_a_missing_id_and_a_vector_that_is_not_finite_are_named(tmp_path):
    store = Plain()
    store.add(3)
    matrix = Matrix.load(tmp_path, "k", DIM).catch_up(store, unchanged)
    with pytest.raises(SearchError, match="id 9"):
        matrix.vectors(np.array([1, 9]))
    store.add(1)
    store.here[4][2] = np.nan
    with pytest.raises(SearchError, match="id 4 is not finite"):
        matrix.catch_up(store, unchanged)


WRITER = """
import sys
sys.path[:0] = {paths!r}
from pathlib import Path
from test_matrix import DIM, Plain, unchanged
from crow.search import matrix as room
room.BLOCK = 64
store, folder = Plain(), Path({folder!r})
matrix = room.Matrix.load(folder, "k", DIM)
for step in range(10_000):
    store.add(7)
    if step % 5 == 4:
        store.remove(sorted(store.here)[::3])
    matrix = matrix.catch_up(store, unchanged, folder).save(folder)
    print(store.generation, flush=True)
"""


def test_a_killed_writer_leaves_a_matrix_that_opens(tmp_path):
    """Killed at any moment, what loads is exactly the store of some generation, none older than the last one told."""
    paths = [str(Path(__file__).parent), str(Path(room.__file__).parents[2])]
    for told in (1, 3, 10, 23, 48):
        folder = tmp_path / str(told)
        code = WRITER.format(paths=paths, folder=str(folder))
        with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout
            lines = [process.stdout.readline() for _ in range(told)]
            process.kill()
            lines += process.stdout.readlines()
        matrix, store, step = Matrix.load(folder, "k", DIM), Plain(), 0
        while store.generation < matrix.generation:
            store.add(7)
            if step % 5 == 4:
                store.remove(sorted(store.here)[::3])
            step += 1
        assert matrix.generation >= int([line for line in lines if line.endswith("\n")][-1])
        assert same(matrix, store) and not list(Matrix.problems(folder))
