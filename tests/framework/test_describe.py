"""The whole of Algorithm 1, each published descriptor written out by itself from the paper that describes it.

What is here shares nothing with the rooms: no recipe is read, each function is one method from the map to the vector.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import torch

import crow
from crow.framework.describe import describe, pooled, region_vectors
from crow.framework.reduce import Whitening, WhiteningError
from crow.recipe import MAX2, RECIPES, Channel, Norm, Pool, Recipe, RecipeError, Spatial

Picture = np.ndarray  # (K, H, W)


# --- the methods


def unit(vector: list[float]) -> np.ndarray:
    length = math.sqrt(math.fsum(value * value for value in vector))
    return np.array([value / length if length else 0.0 for value in vector])


def max2(x: Picture) -> Picture:
    """2 x 2 maxima, stride 2, a last odd row or column left out; of a map one cell wide, that cell."""
    channels, height, width = x.shape
    out = np.zeros((channels, max(height // 2, 1), max(width // 2, 1)))
    for i, j in np.ndindex(out.shape[1:]):
        out[:, i, j] = x[:, 2 * i : 2 * i + 2, 2 * j : 2 * j + 2].max((1, 2))
    return out


def response_weights(x: Picture) -> np.ndarray:
    """S_ij: the square root of the summed channels over their L2 norm."""
    total = np.zeros(x.shape[1:])
    for channel in x:
        total += channel
    norm = math.sqrt(math.fsum(s * s for s in total.flat))
    return np.array([[math.sqrt(s / norm) if s > 0 else 0.0 for s in row] for row in total])


def rarity(x: Picture, eps: float = 1e-6) -> list[float]:
    """I_k of the paper."""
    q = [np.count_nonzero(channel) / channel.size for channel in x]
    return [math.log((len(q) * eps + sum(q)) / (eps + share)) for share in q]


def rarity_released(x: Picture) -> list[float]:
    """The released code's: no eps, and no weight for a channel that never fires."""
    q = [np.count_nonzero(channel) / channel.size for channel in x]
    return [math.log(sum(q) / share) if share > 0 else 0.0 for share in q]


def weighted(x: Picture, spatial: np.ndarray | None, channels: list[float] | None) -> np.ndarray:
    spatial = np.ones(x.shape[1:]) if spatial is None else spatial
    channels = [1.0] * len(x) if channels is None else channels
    return unit([float((spatial * channel).sum()) * weight for channel, weight in zip(x, channels, strict=True)])


def crow_(x: Picture) -> np.ndarray:
    x = max2(x)
    return weighted(x, response_weights(x), rarity(x))


def crow_released(x: Picture) -> np.ndarray:
    x = max2(x)
    return weighted(x, response_weights(x), rarity_released(x))


def crow_conv5(x: Picture) -> np.ndarray:
    return weighted(x, response_weights(x), rarity(x))


def ucrow(x: Picture) -> np.ndarray:
    return weighted(max2(x), None, None)


def ucrow_sw(x: Picture) -> np.ndarray:
    return weighted(max2(x), response_weights(max2(x)), None)


def ucrow_ssw(x: Picture) -> np.ndarray:
    return weighted(max2(x), None, rarity(max2(x)))


def spoc(x: Picture) -> np.ndarray:
    """Babenko and Lempitsky: a Gaussian whose sigma is a third of the way from the centre to the nearest border."""
    height, width = x.shape[1:]
    sigma = min(height, width) / 2 / 3
    prior = np.zeros((height, width))
    for i, j in np.ndindex(height, width):
        r = math.hypot(i - (height - 1) / 2, j - (width - 1) / 2)
        prior[i, j] = math.exp(-0.5 * (r / sigma) ** 2)
    return weighted(x, prior, None)


def mac(x: Picture) -> np.ndarray:
    return unit([float(channel.max()) for channel in x])


def gem(x: Picture) -> np.ndarray:
    return unit([(sum(max(v, 1e-6) ** 3 for v in channel.flat) / channel.size) ** (1 / 3) for channel in x])


def region_maxima(x: Picture) -> list[np.ndarray]:
    """Tolias et al. as cnnimageretrieval-pytorch computes it: the whole, then three levels of squares."""
    height, width = x.shape[1:]
    short, longer = min(height, width), max(height, width)
    misses = [abs(1 - Fraction(longer - short, (steps - 1) * short) - Fraction(2, 5)) for steps in (2, 3, 4, 5, 6, 7)]
    more = misses.index(min(misses)) + 1
    maxima = [x.max((1, 2))]
    for level in (1, 2, 3):
        side = 2 * short // (level + 1)
        rows = level + (more if height > width else 0)
        columns = level + (more if width > height else 0)
        for i in range(rows if side else 0):
            top = math.floor(Fraction(i * (height - side), rows - 1)) if rows > 1 else 0
            for j in range(columns):
                left = math.floor(Fraction(j * (width - side), columns - 1)) if columns > 1 else 0
                maxima.append(x[:, top : top + side, left : left + side].max((1, 2)))
    return maxima


def rmac(x: Picture) -> np.ndarray:
    return unit(sum(unit(region) for region in region_maxima(x)))


METHODS: dict[str, Callable[[Picture], np.ndarray]] = {
    "crow": crow_,
    "ucrow": ucrow,
    "ucrow+sw": ucrow_sw,
    "ucrow+ssw": ucrow_ssw,
    "spoc": spoc,
    "mac": mac,
    "gem": gem,
    "rmac": rmac,
    "crow-conv5": crow_conv5,
    "crow-released": crow_released,
}


def test_every_recipe_is_written_out_here() -> None:
    assert set(METHODS) | {"rmac-regional"} == set(RECIPES)


# --- against the recipes


@pytest.mark.parametrize("name", METHODS)
def test_every_recipe(name: str, x: np.ndarray) -> None:
    expected = np.array([METHODS[name](picture) for picture in x])
    for dtype in (torch.float32, torch.float64):
        given = torch.from_numpy(x.copy()).to(dtype)
        kept = given.clone()
        got = describe(given, RECIPES[name])
        assert got.dtype == dtype and got.shape == x.shape[:2]
        np.testing.assert_allclose(got.numpy(), expected, atol=1e-5)
        assert torch.equal(given, kept)


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_maps_are_reckoned_with_in_float32(name: str, dtype: torch.dtype, x: np.ndarray) -> None:
    given = torch.from_numpy(x.copy()).to(dtype)
    expected = np.array([METHODS[name](picture) for picture in given.double().numpy()])
    got = describe(given, RECIPES[name])
    assert got.dtype == torch.float32
    np.testing.assert_allclose(got.numpy(), expected, atol=1e-5)


@pytest.mark.parametrize("name", METHODS)
def test_a_large_half_precision_map_does_not_overflow(name: str) -> None:
    given = (torch.rand(1, 512, 40, 60, generator=torch.manual_seed(0)) * 6e4).to(torch.float16)
    np.testing.assert_allclose(describe(given, RECIPES[name]).norm().item(), 1, atol=1e-5)


def ordinary(batch: int = 5) -> torch.Tensor:
    dice = torch.manual_seed(3)
    return torch.rand(batch, 16, 9, 11, generator=dice).sub(0.4).relu()


@pytest.mark.parametrize("name", METHODS)
def test_a_batch_equals_one_by_one_and_memory_order_is_nothing(name: str) -> None:
    x, recipe = ordinary(), RECIPES[name]
    together = describe(x, recipe)
    np.testing.assert_allclose(together, torch.cat([describe(one[None], recipe) for one in x]), atol=1e-6)
    np.testing.assert_allclose(together, describe(x.contiguous(memory_format=torch.channels_last), recipe), atol=1e-6)
    turned = x.transpose(2, 3).contiguous().transpose(2, 3)
    np.testing.assert_allclose(together, describe(turned, recipe), atol=1e-6)
    np.testing.assert_allclose(describe(x[:1].expand(3, -1, -1, -1), recipe), together[[0, 0, 0]], atol=1e-6)


@pytest.mark.parametrize("name", [name for name in METHODS if name != "gem"])  # GeM clamps at a fixed 1e-6
def test_the_brightness_of_a_map_is_nothing(name: str) -> None:
    x = ordinary().double()
    np.testing.assert_allclose(describe(x * 37, RECIPES[name]), describe(x, RECIPES[name]), atol=1e-9)


@pytest.mark.parametrize("name", METHODS)
def test_mirroring(name: str) -> None:
    """No recipe prefers left to right, on a map whose windows and regions mirror onto themselves."""
    x = ordinary()[:, :, :8, :8]
    np.testing.assert_allclose(describe(x.flip(3), RECIPES[name]), describe(x, RECIPES[name]), atol=1e-6)


def test_settings_reach_their_steps() -> None:
    """A recipe that changes every number of the framework, written out."""
    x = ordinary(2).double()
    recipe = Recipe(
        "mine",
        Pool("sum", size=(3, 2), stride=1, ceil=True),
        Spatial("response", a=1, b=4),
        Channel("sparsity", eps=0.01),
        Norm("l1", power=0.5),
    )
    for picture, got in zip(x.numpy(), describe(x, recipe).numpy(), strict=True):
        small = np.zeros((16, 8, 9))
        for k, i, j in np.ndindex(small.shape):
            small[k, i, j] = picture[k, i : i + 2, j : j + 3].sum()
        total = small.sum(0)
        q = [(channel > 0).mean() for channel in small]
        expected = []
        for channel, share in zip(small, q, strict=True):
            value = ((total / total.sum()) ** 0.25 * channel).sum() * math.log((16 * 0.01 + sum(q)) / (0.01 + share))
            expected.append(math.sqrt(value))
        np.testing.assert_allclose(got, np.array(expected) / sum(expected), rtol=1e-9)


# --- R-MAC with each region whitened


@pytest.fixture(scope="module")
def regional() -> Whitening:
    """A whitening really learned from regions: those of thirty maps of 16 channels."""
    maps = torch.rand(30, 16, 9, 11, generator=torch.manual_seed(5)).pow(3)
    rows = region_vectors(pooled(maps, RECIPES["rmac"])).numpy()
    return Whitening.fit(rows, 7, RECIPES["rmac"])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_rmac_regional(regional: Whitening, dtype: torch.dtype) -> None:
    recipe = replace(RECIPES["rmac-regional"], regional=regional.fingerprint)
    x = torch.cat([ordinary(2), torch.zeros(1, 16, 9, 11)]).to(dtype)
    kept = x.clone()
    got = describe(x, recipe, regional)
    assert got.shape == (3, 7) and got.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    for picture, vector in zip(x.double().numpy(), got.numpy(), strict=True):
        total = np.zeros(7)
        for region in region_maxima(picture):
            whitened = [math.fsum((unit(region) - regional.mean) * regional.projection[:, axis]) for axis in range(7)]
            total += unit(whitened)
        np.testing.assert_allclose(vector, unit(total), atol=1e-5)
    assert torch.equal(x, kept)


def test_region_vectors_are_the_unit_rows_of_every_region_in_turn() -> None:
    x = ordinary(2)
    expected = [unit(region) for picture in x.double().numpy() for region in region_maxima(picture)]
    np.testing.assert_allclose(region_vectors(pooled(x, RECIPES["rmac"])), expected, atol=1e-6)


def test_a_whitening_can_also_go_over_every_cell_of_a_map(regional: Whitening) -> None:
    x = ordinary(2)
    recipe = Recipe("whitened-cells", Pool("none"), regional=regional.fingerprint)
    got = pooled(x, recipe, regional)
    assert got.shape == (2, 7, 9, 11)
    for b, i, j in ((0, 0, 0), (1, 8, 10), (1, 3, 7)):
        cell = regional(unit(x[b, :, i, j].tolist())[None])[0]
        np.testing.assert_allclose(got[b, :, i, j], cell, atol=1e-5)


def test_rmac_regional_asks_for_the_whitening_it_names(regional: Whitening) -> None:
    named = replace(RECIPES["rmac-regional"], regional=regional.fingerprint)
    for recipe, given in ((named, None), (RECIPES["rmac-regional"], regional), (named, regional.to_dim(6))):
        with pytest.raises(RecipeError, match="rmac-regional needs the whitening of its regions that it names"):
            describe(ordinary(), recipe, given)
    with pytest.raises(WhiteningError, match=r"takes vectors \(n, 16\), not"):
        describe(ordinary()[:, :9], named, regional)


# --- gradients


def recipes_and_whitenings(regional: Whitening) -> list[tuple[Recipe, Whitening | None]]:
    plain: list[tuple[Recipe, Whitening | None]] = [(RECIPES[name], None) for name in METHODS]
    rooted = [(replace(recipe, norm=Norm("l2", power=0.5)), None) for recipe, _ in plain]
    edges = [
        (Recipe("a=0.5", MAX2, Spatial("response", a=0.5, b=3)), None),
        (Recipe("a=inf", MAX2, Spatial("response", a=math.inf, b=1)), None),
        (Recipe("p=10", Pool("power-mean", p=10)), None),
        (replace(RECIPES["rmac-regional"], regional=regional.fingerprint), regional),
    ]
    return plain + rooted + edges


def test_gradients_are_finite_whatever_the_map(regional: Whitening) -> None:
    one_cell = torch.zeros(1, 16, 6, 7)
    one_cell[0, 4, 2, 3] = 2.0
    for recipe, whitening in recipes_and_whitenings(regional):
        for x in (
            ordinary(2),
            torch.zeros(2, 16, 5, 6),
            one_cell,
            ordinary(1)[:, :, :1],
            torch.full((1, 16, 4, 4), 1e-12),
        ):
            x = x.clone().requires_grad_()
            v = describe(x, recipe, whitening)
            (v * torch.arange(v.shape[1])).sum().backward()
            assert torch.isfinite(v).all(), recipe
            assert x.grad is not None and torch.isfinite(x.grad).all(), recipe


def test_gradients_equal_finite_differences(regional: Whitening) -> None:
    x = torch.rand(2, 16, 3, 4, dtype=torch.float64, generator=torch.manual_seed(9)) + 0.5
    for recipe, whitening in recipes_and_whitenings(regional):
        given = x.clone().requires_grad_()
        assert torch.autograd.gradcheck(
            lambda m, r=recipe, w=whitening: describe(m, r, w), given, fast_mode=True, atol=1e-6
        ), recipe


# --- what is no map


@pytest.mark.parametrize("shape", [(3, 4, 4), (0, 3, 4, 4), (1, 0, 4, 4), (1, 3, 0, 4), (2, 2)])
def test_refuses_what_has_not_the_shape_of_a_map(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"a feature map has the shape \(B, K, H, W\) with nothing empty, not \("):
        describe(torch.zeros(shape), RECIPES["crow"])


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int64, torch.bool, torch.complex64])
def test_refuses_what_holds_no_real_numbers(dtype: torch.dtype) -> None:
    with pytest.raises(ValueError, match="a feature map holds floating point numbers, not torch"):
        describe(torch.zeros(1, 3, 4, 4, dtype=dtype), RECIPES["crow"])


def test_the_public_name() -> None:
    assert crow.describe is describe


# --- real photographs through the real network


@pytest.fixture(scope="module")
def real_maps(photos: Path, vgg16: Path) -> list[torch.Tensor]:
    """conv5_3 of four photographs, of different shapes and odd sizes."""
    describer = crow.Describer(RECIPES["crow"].sized("200"), engine="torch")
    files = sorted(photos.glob("*/*.jpg"))[::40][:3]
    maps = describer.maps(files) + describer.maps(files[:1], box=(0, 0, 300, 90))
    assert all(x.shape[:2] == (1, 512) and (x >= 0).all() and (x == 0).any() for x in maps)
    return maps


@pytest.mark.parametrize("name", METHODS)
def test_every_recipe_on_real_maps(name: str, real_maps: list[torch.Tensor]) -> None:
    for x in real_maps:
        expected = METHODS[name](x[0].double().numpy())
        np.testing.assert_allclose(describe(x, RECIPES[name]).numpy()[0], expected, atol=1e-5)
        np.testing.assert_allclose(describe(x.double(), RECIPES[name]).numpy()[0], expected, atol=1e-9)
