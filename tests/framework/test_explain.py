"""What a cell adds: the parts must sum to the whole, to the vector and to the cosine."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from crow.framework.describe import describe
from crow.framework.explain import (
    best_region,
    cell_vectors,
    is_linear,
    rarest_active,
    score_cells,
    spatial_map,
)
from crow.framework.reduce import Whitening
from crow.recipe import RECIPES, Norm

LINEAR = ["crow", "ucrow", "ucrow+sw", "ucrow+ssw", "spoc", "rmac", "crow-conv5", "crow-released"]


def some_map(seed: int) -> torch.Tensor:
    return torch.rand(1, 16, 9, 11, generator=torch.manual_seed(seed)).sub(0.4).relu()


def test_which_recipes_are_sums_over_cells() -> None:
    assert [name for name, recipe in RECIPES.items() if is_linear(recipe)] == LINEAR
    assert not is_linear(replace(RECIPES["crow"], norm=Norm("l2", power=0.5)))
    for name in ("mac", "gem", "rmac-regional"):
        with pytest.raises(ValueError, match=f"the vector of {name} is no sum over cells"):
            cell_vectors(some_map(0), RECIPES[name])


@pytest.mark.parametrize("name", LINEAR)
def test_shares_of_cells_sum_to_the_vector(name: str) -> None:
    x, recipe = some_map(1), RECIPES[name]
    cells = cell_vectors(x, recipe)
    height, width = (4, 5) if recipe.pool.kind == "max" else (9, 11)
    assert cells.shape == (height, width, 16)
    total = np.zeros(16)
    for i, j in np.ndindex(height, width):
        total += cells[i, j]
    np.testing.assert_allclose(total, describe(x, recipe)[0], atol=1e-5)


def test_the_share_of_a_cell_is_what_its_removal_takes_away_where_weights_are_uniform() -> None:
    x = some_map(2)
    without = x.clone()
    without[0, :, 2:4, 4:6] = 0  # one window of the pooling
    before, after = (describe(m, replace(RECIPES["ucrow"], norm=Norm("none")))[0] for m in (x, without))
    share = cell_vectors(x, RECIPES["ucrow"])[1, 2] * before.norm().item()
    np.testing.assert_allclose(share, before - after, atol=1e-5)


@pytest.mark.parametrize("whiten", [True, False, None])
@pytest.mark.parametrize("name", ["crow", "rmac", "spoc"])
def test_contributions_and_the_constant_sum_to_the_cosine(name: str, whiten: bool | None) -> None:
    recipe = RECIPES[name]
    x, other = some_map(3), some_map(4)
    one, two = describe(x, recipe).numpy(), describe(other, recipe).numpy()
    whitening = None
    if whiten is not None:
        others = torch.cat([some_map(seed) for seed in range(10, 60)])
        whitening = Whitening.fit(describe(others, recipe).numpy(), 10, recipe, whiten)
        one, two = whitening(one), whitening(two)
    contributions, constant = score_cells(cell_vectors(x, recipe), two[0], whitening)
    assert contributions.shape == cell_vectors(x, recipe).shape[:2]
    np.testing.assert_allclose(contributions.sum() + constant, one[0] @ two[0], atol=1e-5)


def test_an_all_zero_map_contributes_nothing() -> None:
    for name in LINEAR:
        cells = cell_vectors(torch.zeros(1, 16, 6, 7), RECIPES[name])
        assert (cells == 0).all()


@given(arrays(np.float64, st.tuples(st.integers(1, 5), st.integers(1, 6)), elements=st.integers(-9, 9)))
def test_the_best_region_is_the_best_of_all_rectangles(contributions: np.ndarray) -> None:
    excess = contributions - contributions.mean()
    height, width = excess.shape
    best = max(
        excess[i : k + 1, j : m + 1].sum()
        for i in range(height)
        for k in range(i, height)
        for j in range(width)
        for m in range(j, width)
    )
    left, top, across, down = best_region(contributions)
    assert across >= 1 and down >= 1 and left + across <= width and top + down <= height
    np.testing.assert_allclose(excess[top : top + down, left : left + across].sum(), best, atol=1e-9)


def test_spatial_map_is_the_weight_of_the_papers_figure() -> None:
    x = some_map(5)
    pooled = x[0].numpy()[:, :8, :10].reshape(16, 4, 2, 5, 2).max((2, 4))
    total = pooled.sum(0)
    np.testing.assert_allclose(spatial_map(x, RECIPES["crow"]), np.sqrt(total / np.sqrt((total**2).sum())), atol=1e-6)


def test_the_rarest_channels_are_active_ones() -> None:
    """Dead channels have the highest weight of all and show nothing."""
    x = torch.zeros(1, 6, 8, 8)
    x[0, 1, :2, :2] = 1.0  # one pooled cell
    x[0, 3] = 1.0  # everywhere
    x[0, 4, 6:, :4] = 1.0  # two pooled cells
    channels, places = rarest_active(x, RECIPES["crow"], count=2)
    assert channels == [1, 4]
    expected = np.zeros((4, 4), bool)
    expected[0, 0] = expected[3, :2] = True
    np.testing.assert_array_equal(places, expected)
    assert rarest_active(x, RECIPES["crow"])[0] == [1, 4, 3]
    nothing, nowhere = rarest_active(torch.zeros(1, 6, 8, 8), RECIPES["crow"])
    assert nothing == [] and not nowhere.any()
