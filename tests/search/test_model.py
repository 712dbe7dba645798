"""Random operations against a plain dict: an index answers as the dict does. CROW_LONG=1 makes it 20,000 of them."""

from __future__ import annotations

import math
import os
import shutil
import tempfile
from pathlib import Path

import numpy as np
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from crow.framework.reduce import Whitening
from crow.search.care import verify
from crow.search.index import Index
from crow.search.store import Failure, Row

EXAMPLES = int(os.environ.get("CROW_EXAMPLES", 400 if os.environ.get("CROW_LONG") else 8))
DIM = 6
NAMES = st.builds(lambda folder, name: f"/{folder}/{name}", st.sampled_from("ab"), st.integers(0, 30))
SEEDS = st.integers(0, 60)
DONE = [0]


def vector(seed: int) -> np.ndarray:
    v = np.random.default_rng(seed).standard_normal(DIM).astype(np.float32)
    return v / np.linalg.norm(v)


class Model(RuleBasedStateMachine):
    """The index, and beside it what it should hold."""

    @initialize()
    def create(self) -> None:
        self.folder = Path(tempfile.mkdtemp())
        self.index = Index.create(self.folder / "a.crow", recipe="crow")
        self.rows: dict[str, tuple[int, np.ndarray]] = {}  # path -> id, raw vector
        self.failed: dict[str, str] = {}
        self.whitening: Whitening | None = None

    def teardown(self) -> None:
        if hasattr(self, "index"):
            assert verify(self.index) == []
            self.index.close()
            shutil.rmtree(self.folder)

    @rule(items=st.lists(st.tuples(NAMES, SEEDS), min_size=1, max_size=8, unique_by=lambda item: item[0]))
    def upsert(self, items: list[tuple[str, int]]) -> None:
        ids = self.index.store.upsert(Row(path, vector(seed)) for path, seed in items)
        for (path, seed), number in zip(items, ids, strict=True):
            self.rows[path] = int(number), vector(seed)
            self.failed.pop(path, None)

    @rule(paths=st.lists(NAMES, max_size=5))
    def remove(self, paths: list[str]) -> None:
        assert self.index.store.remove(paths) == len(self.rows.keys() & set(paths))
        for path in paths:
            self.rows.pop(path, None)
            self.failed.pop(path, None)

    @rule(path=NAMES, place=NAMES)
    def move(self, path: str, place: str) -> None:
        if path not in self.rows:
            return
        self.index.store.move([Row(place, id=self.rows[path][0])])
        self.rows[place] = self.rows.pop(path)
        self.failed.pop(place, None)

    @rule(path=NAMES, reason=st.text(max_size=5))
    def fail(self, path: str, reason: str) -> None:
        self.index.store.fail([Failure(path, reason)])
        self.rows.pop(path, None)
        self.failed[path] = reason.encode("utf-8", "backslashreplace").decode()

    @rule(dim=st.integers(1, DIM))
    def rewhiten(self, dim: int) -> None:
        if len({v.tobytes() for _, v in self.rows.values()}) < dim + 2:
            return
        self.index.rewhiten(dim, to="self")
        raw = np.stack([v for _, v in sorted(self.rows.values(), key=lambda row: row[0])])
        self.whitening = Whitening.fit(raw.astype(np.float64), dim, self.index.recipe)

    @rule()
    def unwhiten(self) -> None:
        self.index.rewhiten(to="none")
        self.whitening = None

    @rule()
    def save(self) -> None:
        self.index.save_matrix()

    @rule()
    def reopen(self) -> None:
        self.index.close()
        self.index = Index.open(self.folder / "a.crow")

    @rule(seed=SEEDS, k=st.integers(1, 70), folder=st.sampled_from([None, "/a", "/b", "/c"]))
    def search(self, seed: int, k: int, folder: str | None) -> None:
        rows = {p: row for p, row in self.rows.items() if folder is None or p.startswith(folder + "/")}
        found = self.index.search(vector(seed), k=k, under=folder)
        assert len(found) == min(k, len(rows))
        if not rows:
            return
        raw = np.stack([v for _, v in rows.values()] + [vector(seed)])
        reduced = self.whitening.apply(raw) if self.whitening else raw.astype(np.float64)
        score = {p: math.fsum(reduced[i].astype(np.float64) * reduced[-1]) for i, p in enumerate(rows)}
        best = sorted(score.values(), reverse=True)[: len(found)]
        np.testing.assert_allclose([h.score for h in found], best, atol=4e-3)
        assert all(abs(h.score - score[h.path]) < 4e-3 for h in found)
        assert len({h.path for h in found}) == len(found)

    @invariant()
    def same(self) -> None:
        DONE[0] += 1
        if not hasattr(self, "index"):
            return
        store = self.index.store
        assert {path: stamp.id for path, stamp in store.stamps().items()} == {p: i for p, (i, _) in self.rows.items()}
        assert {path: failure.reason for path, failure in store.failures().items()} == self.failed
        ids = np.array(sorted(i for i, _ in self.rows.values()), np.int64)
        expected = dict(self.rows.values())
        if len(ids):
            np.testing.assert_array_equal(store.vectors(ids), np.stack([expected[i] for i in ids]))


Model.TestCase.settings = settings(
    max_examples=EXAMPLES,
    stateful_step_count=60 if EXAMPLES > 8 else 25,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)


class TestModel(Model.TestCase):
    """An index and a dict, side by side."""

    @classmethod
    def tearDownClass(cls) -> None:
        print(f"{DONE[0]:,} operations compared")
