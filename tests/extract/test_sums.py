"""Vectors from the sums that the GPU makes in one pass over the map; the sums here are made by NumPy."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from crow.extract.engines.sums import WIDTH, computes, weighed
from crow.framework.describe import describe
from crow.recipe import RECIPES, Channel, Norm, Pool, Recipe, Spatial

POOL = Pool("max", size=2, stride=2)
SUMMED = ["crow", "ucrow", "ucrow+sw", "ucrow+ssw", "crow-conv5", "crow-released"]
OTHERS = [
    Recipe("a = 1", POOL, Spatial("response", a=1, b=1), Channel("sparsity")),
    Recipe("a = inf", POOL, Spatial("response", a=math.inf, b=2), Channel("sparsity")),
    Recipe("a = 3, b = 5", Pool("none"), Spatial("response", a=3, b=5), Channel("sparsity", eps=1e-3)),
    Recipe("ceil", Pool("max", size=2, stride=2, ceil=True), Spatial("response", a=2, b=2)),
    Recipe("l1", POOL, norm=Norm("l1")),
    Recipe("root", POOL, Spatial("response"), Channel("sparsity"), Norm("l2", power=0.5)),
]


def map_of(seed: int, height: int, width: int) -> np.ndarray:
    """(K, H, W) as a network leaves it: most of it zero, some channels dead."""
    rng = np.random.default_rng(seed)
    x = np.maximum(rng.normal(-1, 2, (WIDTH, height, width)), 0) * rng.gamma(0.5, 9, (WIDTH, 1, 1))
    x[rng.random(WIDTH) < 0.1] = 0
    return x.astype(np.float32)


def sums_of(x: np.ndarray, recipe: Recipe) -> np.ndarray:
    """(K, H, W) -> (2 K + 1,): weighted sums with S' ^ 1/b, shares of places that fire, the sum (or largest) of S' ^ a."""
    if recipe.pool.kind == "max":
        _, height, width = x.shape
        rounded = math.ceil if recipe.pool.ceil else math.floor
        rows, columns = rounded(height / 2), rounded(width / 2)
        x = np.stack(
            [[x[:, 2 * i : 2 * i + 2, 2 * j : 2 * j + 2].max((1, 2)) for j in range(columns)] for i in range(rows)]
        ).transpose(2, 0, 1)
    total = x.sum(0, dtype=np.float64)
    weigh = total ** (1 / recipe.spatial.b) if recipe.spatial.kind == "response" else np.ones_like(total)
    norm = total.max() if math.isinf(recipe.spatial.a) else (total**recipe.spatial.a).sum()
    return np.concatenate([(x * weigh).sum((1, 2)), (x > 0).mean((1, 2)), [norm]]).astype(np.float32)


@pytest.mark.parametrize("recipe", [*(RECIPES[name] for name in SUMMED), *OTHERS], ids=lambda recipe: recipe.name)
def test_sums_give_the_vectors_of_describe(recipe: Recipe) -> None:
    assert computes(recipe)
    maps = [map_of(seed, *size) for seed, size in enumerate([(13, 9), (2, 2), (7, 30)])]
    expected = np.concatenate([describe(torch.from_numpy(x)[None], recipe).numpy() for x in maps])
    found = weighed(np.stack([sums_of(x, recipe) for x in maps]), recipe)
    assert found.dtype == np.float32
    assert np.abs(found - expected).max() < 2e-6
    assert (found * expected).sum(1) == pytest.approx((expected * expected).sum(1), abs=1e-5)


@pytest.mark.parametrize("name", SUMMED)
def test_a_map_where_nothing_fires_gives_what_describe_gives(name: str) -> None:
    x = np.zeros((WIDTH, 6, 8), np.float32)
    expected = describe(torch.from_numpy(x)[None], RECIPES[name]).numpy()
    assert np.array_equal(weighed(sums_of(x, RECIPES[name])[None], RECIPES[name]), expected)


def test_what_needs_more_than_sums_is_left_to_describe() -> None:
    assert {name for name, recipe in RECIPES.items() if not computes(recipe)} == set(RECIPES) - set(SUMMED)
    assert not computes(Recipe("overflows", POOL, Spatial("response", a=9)))
    assert not computes(Recipe("overflows", POOL, Spatial("response", b=0.1)))
    assert not computes(Recipe("3 x 3", Pool("max", size=3, stride=2)))
    assert not computes(Recipe("overlapping", Pool("max", size=2, stride=1)))
