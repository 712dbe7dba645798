"""Why a result matches: the cells and the constant add up to the score that the same engine gives, on real photographs."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent))
from serving import Colours

from crow.app.serve.explanation import Side, explain
from crow.extract.engines.torch import TorchEngine
from crow.extract.images import prepare
from crow.extract.networks import load
from crow.framework.explain import alike_cells, is_linear
from crow.framework.reduce import Whitening
from crow.recipe import RECIPES, Pool, Recipe

PAIRS, PHOTOS = 100, 16
LINEAR = [name for name, recipe in RECIPES.items() if is_linear(recipe)]


class Remembered(TorchEngine):
    """The reference engine, each picture through the network once: every recipe looks at the same maps."""

    def maps(self, pictures):  # type: ignore[no-untyped-def]
        kept = self.__dict__.setdefault("kept", {})
        for picture in pictures:
            key = (picture.shape, picture.tobytes())
            if key not in kept:
                kept[key] = next(super().maps([picture]))
            yield kept[key]


@pytest.fixture(scope="module")
def engine(vgg16: Path) -> TorchEngine:
    return Remembered(load("vgg16", "conv5_3")[0], "cpu")


@pytest.fixture(scope="module")
def pictures(photos: Path, other_photos: Path) -> list[np.ndarray]:
    """Photographs of many shapes, some cut to a box."""
    files = sorted(photos.glob("*/*.jpg"))[:: 156 // PHOTOS][:PHOTOS]
    view = RECIPES["crow"].sized("176").view
    return [prepare(file, view, (20, 30, 260, 170) if i % 3 == 0 else None).pixels for i, file in enumerate(files)]


@pytest.mark.parametrize("name", LINEAR)
def test_cells_and_the_constant_are_the_score(engine: TorchEngine, pictures: list[np.ndarray], name: str) -> None:
    recipe, random = RECIPES[name], np.random.default_rng(0)
    describer = SimpleNamespace(recipe=recipe, engine=engine, regional=None)
    raw = engine.vectors(pictures, recipe)
    whitening = Whitening.fit(np.concatenate([raw, raw[::-1] * random.uniform(0.5, 2, raw.shape)]), 12, recipe)
    worst = 0.0
    for pair in range(PAIRS):
        i, j = random.integers(0, len(pictures), 2)
        used = whitening if pair % 2 else None
        sides = [Side(pictures[n], (0.0, 0.0, *map(float, pictures[n].shape[1::-1]))) for n in (i, j)]
        told = explain(describer, used, *sides)
        one, two = used(raw[[i, j]]) if used else raw[[i, j]]
        score = float(one.astype(np.float64) @ two.astype(np.float64))
        for side in ("query", "result"):
            parts = sum(sum(row) for row in told[side]["cells"]) + told[side]["constant"]
            worst = max(worst, abs(parts - score))
    print(f"{name}: {PAIRS} pairs, at most {worst:.1e} apart")
    assert worst < 1e-4


def test_where_a_score_is_no_sum_the_map_says_how_alike_places_are() -> None:
    describer = Colours(RECIPES["gem"])
    random = np.random.default_rng(1)
    sides = [Side(random.integers(0, 256, (96, 160, 3), np.uint8), (0, 0, 160, 96)) for _ in range(2)]
    told = explain(describer, None, *sides)
    assert not told["linear"] and told["query"]["weights"] is None
    one, two = (x[0].double().numpy() for x in describer.engine.maps([side.pixels for side in sides]))
    whole = two.sum((1, 2))
    for i, j in ((0, 0), (2, 7), (5, 9)):
        place = one[:, i, j]
        cosine = place @ whole / np.linalg.norm(place) / np.linalg.norm(whole)
        np.testing.assert_allclose(told["query"]["cells"][i][j], cosine, atol=1e-8)


def test_a_place_without_any_response_is_like_nothing() -> None:
    import torch

    assert (alike_cells(torch.zeros(1, 4, 3, 3), torch.rand(1, 4, 2, 2)) == 0).all()


@pytest.mark.parametrize(("pool", "expected"), [(Pool("max"), (0, 0, 160, 96)), (Pool("none"), (0, 0, 176, 112))])
def test_the_grid_lies_where_the_network_looked(pool: Pool, expected: tuple[float, ...]) -> None:
    """Of 176 x 112 pixels conv5_3 has 11 x 7 cells of 16; 2 x 2 pooling drops the last of either."""
    describer = Colours(Recipe("crow", pool))
    pixels = np.random.default_rng(2).integers(0, 256, (112, 176, 3), np.uint8)
    side = Side(pixels, (0, 0, 176, 112))
    told = explain(describer, None, side, side)
    assert tuple(told["query"]["extent"]) == expected
    left, top, right, bottom = told["query"]["region"]
    assert 0 <= left < right <= expected[2] and 0 <= top < bottom <= expected[3]
