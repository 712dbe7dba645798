"""Steps 2 and 3 against loops over cells and channels, written from the paper's formulas."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from crow.framework.weight import CHANNEL, SPATIAL, channel_weight, shares, spatial_weight
from crow.recipe import Channel, RecipeError, Spatial


def spatial(x: np.ndarray, settings: Spatial) -> np.ndarray:
    return spatial_weight(torch.from_numpy(x.copy()), settings).numpy()


def channels(x: np.ndarray, settings: Channel) -> np.ndarray:
    return channel_weight(torch.from_numpy(x.copy()), settings).numpy()


@pytest.mark.parametrize("b", [1.0, 2.0, 3.0])
@pytest.mark.parametrize("a", [0.5, 1.0, 2.0, 3.0, math.inf])
def test_response(x: np.ndarray, a: float, b: float) -> None:
    expected = np.zeros((len(x), *x.shape[2:]))
    for n, picture in enumerate(x):
        total = {}
        for i, j in np.ndindex(picture.shape[1:]):
            total[i, j] = math.fsum(picture[k, i, j] for k in range(len(picture)))
        if a == math.inf:
            norm = max(total.values())
        else:
            norm = math.fsum(s**a for s in total.values()) ** (1 / a)
        for place, s in total.items():
            expected[(n, *place)] = (s / norm) ** (1 / b) if s > 0 else 0.0
    np.testing.assert_allclose(spatial(x, Spatial("response", a=a, b=b)), expected, rtol=1e-5, atol=1e-12)


def test_response_of_one_active_cell_is_one_there() -> None:
    x = np.zeros((1, 4, 3, 5))
    x[0, 2, 1, 4] = 0.3
    expected = np.zeros((1, 3, 5))
    expected[0, 1, 4] = 1
    np.testing.assert_allclose(spatial(x, Spatial("response")), expected, rtol=1e-12)


@pytest.mark.parametrize("a", [2.0, 20.0, 200.0])
@pytest.mark.parametrize("scale", [1e-12, 1.0, 1e12])
def test_response_does_not_overflow_in_float32(a: float, scale: float) -> None:
    x = torch.rand(1, 512, 24, 32, generator=torch.manual_seed(1)) * 100
    plain = spatial_weight(x, Spatial("response", a=a))
    scaled = spatial_weight(x * scale, Spatial("response", a=a))
    assert (plain > 0).all() and torch.isfinite(plain).all()
    torch.testing.assert_close(scaled, plain, rtol=1e-4, atol=0)


def test_response_of_a_map_with_negative_cells_is_zero_where_the_sum_is() -> None:
    x = torch.tensor([[[[3.0, -5.0]], [[1.0, 2.0]]]], requires_grad=True)
    s = spatial_weight(x, Spatial("response"))
    torch.testing.assert_close(s, torch.tensor([[[1.0, 0.0]]]))
    s.sum().backward()
    assert x.grad is not None and torch.isfinite(x.grad).all()


@pytest.mark.parametrize("sigma", [1 / 6, 1 / 3])
def test_centre_prior(x: np.ndarray, sigma: float) -> None:
    """SPoC: exp(-r^2 / (2 sigma^2)) around the middle; sigma a third of the way from there to the nearest border."""
    height, width = x.shape[2:]
    expected = np.zeros((len(x), height, width))
    for n, i, j in np.ndindex(expected.shape):
        squared = (i - (height - 1) / 2) ** 2 + (j - (width - 1) / 2) ** 2
        expected[n, i, j] = math.exp(-squared / (2 * (sigma * min(height, width)) ** 2))
    np.testing.assert_allclose(spatial(x, Spatial("centre", sigma=sigma)), expected, rtol=1e-5, atol=1e-12)


def test_inverse_norm(x: np.ndarray) -> None:
    expected = np.zeros((len(x), *x.shape[2:]))
    for n, i, j in np.ndindex(expected.shape):
        length = math.sqrt(math.fsum(value**2 for value in x[n, :, i, j]))
        expected[n, i, j] = 1 / length if length else 0.0
    np.testing.assert_allclose(spatial(x, Spatial("inverse-norm")), expected, rtol=1e-5)


def positive_share(picture: np.ndarray) -> list[float]:
    """Q: for each channel the proportion of positive responses."""
    return [sum(bool(value > 0) for value in channel.ravel()) / channel.size for channel in picture]


def test_shares(x: np.ndarray) -> None:
    expected = [positive_share(picture) for picture in x]
    np.testing.assert_allclose(shares(torch.from_numpy(x.copy())).numpy(), expected, rtol=1e-12)


@pytest.mark.parametrize("eps", [1e-6, 1e-3])
def test_sparsity_as_the_paper_writes_it(x: np.ndarray, eps: float) -> None:
    expected = []
    for picture in x:
        q = positive_share(picture)
        expected.append([math.log((len(q) * eps + math.fsum(q)) / (eps + share)) for share in q])
    np.testing.assert_allclose(channels(x, Channel("sparsity", eps=eps)), expected, rtol=1e-5, atol=1e-9)


def test_sparsity_as_the_released_code_computes_it(x: np.ndarray) -> None:
    expected = []
    for picture in x:
        nonzeros = np.array(positive_share(picture))
        total = nonzeros.sum()
        expected.append([math.log(total / share) if share > 0 else 0.0 for share in nonzeros])
    np.testing.assert_allclose(channels(x, Channel("sparsity-released")), expected, rtol=1e-5, atol=1e-9)


def test_the_two_sparsities_agree_on_active_channels(x: np.ndarray) -> None:
    """They differ by about eps, and on channels that never fire, whose sum is zero anyway."""
    active = (x > 0).any((2, 3))
    paper, released = channels(x, Channel("sparsity")), channels(x, Channel("sparsity-released"))
    np.testing.assert_allclose(paper[active], released[active], atol=1e-3)
    assert (released[~active] == 0).all()


def test_uniform_is_one_everywhere(x: np.ndarray) -> None:
    np.testing.assert_array_equal(spatial(x, Spatial("uniform")), np.ones((len(x), *x.shape[2:])))
    np.testing.assert_array_equal(channels(x, Channel("uniform")), np.ones(x.shape[:2]))


@pytest.mark.parametrize("kind", SPATIAL)
def test_spatial_gradients(kind: str) -> None:
    x = torch.rand(2, 3, 4, 5, dtype=torch.float64, generator=torch.manual_seed(0)) + 0.5
    before = x.clone()
    x.requires_grad_()
    for a in (0.5, 1.0, 2.0, math.inf):
        assert torch.autograd.gradcheck(lambda m, a=a: spatial_weight(m, Spatial(kind, a=a)) * m.sum(1), x)
    assert torch.equal(x, before)


@pytest.mark.parametrize("kind", CHANNEL)
def test_channel_weights_leave_the_input_alone(kind: str, x: np.ndarray) -> None:
    given = torch.from_numpy(x.copy())
    assert torch.isfinite(channel_weight(given, Channel(kind))).all()
    np.testing.assert_array_equal(given.numpy(), x)


def test_unknown_weights_list_the_known_ones() -> None:
    x = torch.zeros(1, 1, 2, 2)
    with pytest.raises(RecipeError, match="'gauss'; there are: uniform, response, centre, inverse-norm"):
        spatial_weight(x, Spatial("gauss"))
    with pytest.raises(RecipeError, match="'idf'; there are: uniform, sparsity, sparsity-released"):
        channel_weight(x, Channel("idf"))
