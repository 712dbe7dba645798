"""The measurements of search: what they count, not how fast anything is."""

from __future__ import annotations

from io import BytesIO
from itertools import chain
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from crow.app import bench_search
from crow.app.bench import against, timed
from crow.app.bench_matches import matches
from crow.extract.describer import Described
from crow.recipe import RECIPES


def test_clusters_are_what_the_requirement_states() -> None:
    rows = bench_search.whole(3000)
    assert rows.shape == (3000, 256) and np.allclose(np.linalg.norm(rows, axis=1), 1, atol=1e-5)
    assert np.linalg.matrix_rank(rows.astype(np.float64), tol=1e-3) == 64
    assert not np.array_equal(bench_search.whole(100, 1), rows[:100])


def test_neighbours_are_as_far_as_a_search_finds_them() -> None:
    centres = np.random.default_rng(0).standard_normal((300, 8)).astype(np.float32)
    far = [min(np.linalg.norm(a - b) for j, b in enumerate(centres) if j != i) for i, a in enumerate(centres[:50])]
    assert bench_search.neighbours(centres, 50) == pytest.approx(float(np.median(far)), rel=1e-3)


def test_rivals_take_turns_and_the_best_of_them_counts() -> None:
    asked: list[str] = []
    times = timed({name: lambda _, name=name: asked.append(name) for name in "ab"}, [1, 2, 3], block=2)
    assert "".join(asked) == "aaabbb" + "aabb" and [len(t) for t in times.values()] == [3, 3]
    measure = against("speed", {"ours": [1, 2, 3], "slow": [9, 9, 9], "good": [4, 4, 4]}, 3)
    assert (measure.value, measure.ratio, measure.holds) == (2, 2, False)


def test_every_measurement_of_search_answers_on_a_small_scale(tmp_path: Path) -> None:
    parts = bench_search.exact(5000), bench_search.filters(5000), bench_search.cold(5000, tmp_path / "a.crow", 2)
    found = list(chain(*parts, bench_search.approximate(5000, tmp_path / "matrix")))
    assert len(found) == 2 + 6 + 4 + 4
    for measure in found:
        if "recall" in measure.name or "equal" in measure.name or "finds" in measure.name:
            assert measure.holds in (True, None) and measure.value > 0.9, measure


class Colours:
    """A describer that sees the mean colour of a 2 x 2 grid, with what every picture shares."""

    recipe, weights, precision = RECIPES["crow"], "colours", "exact"

    def one(self, source: str | bytes) -> np.ndarray:
        file = BytesIO(source) if isinstance(source, bytes) else source
        small = np.asarray(Image.open(file).convert("RGB").resize((4, 4), Image.Resampling.BOX), np.float64) - 128
        vector = np.concatenate([small.ravel() / 60, [4.0]])
        return (vector / np.linalg.norm(vector)).astype(np.float32)

    def __call__(self, pictures, box=None):
        return np.stack([self.one(picture) for picture in pictures])

    def stream(self, items):
        for key, source in items:
            yield Described(key, self.one(source), 8, 8)


def test_matches_counts_right_and_wrong_results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)

    def paint(path: Path, pixels: np.ndarray) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8)).save(path)

    for i in range(80):
        paint(tmp_path / "photos" / "_distractors" / f"{i}.png", rng.integers(0, 256, (4, 4, 3)))
        paint(tmp_path / "others" / f"{i}.png", rng.integers(0, 256, (4, 4, 3)))
    for scene in "ab":
        base = rng.integers(0, 256, (4, 4, 3))
        for i in range(4):
            paint(tmp_path / "photos" / scene / f"{i}.png", base + rng.normal(0, 10, base.shape))
    monkeypatch.chdir(tmp_path / "photos")
    right, wrong, lured, alone = matches(Path("../photos"), tmp_path / "others", 60, Colours())
    assert (right.value, right.holds) == (1.0, True) and "88 photographs" in right.name
    assert wrong.value < 0.2 and lured.value < 0.1 and alone.value < 0.15
    assert "60 other photographs" in lured.name and "80 distractors" in alone.name
