"""Step 4 against the sum written out."""

from __future__ import annotations

import math

import numpy as np
import torch

from crow.framework.aggregate import aggregate


def test_the_weighted_sum_written_out(x: np.ndarray) -> None:
    dice = np.random.default_rng(7)
    s, c = dice.random((len(x), *x.shape[2:])), dice.random(x.shape[:2])
    expected = np.zeros(x.shape[:2])
    for b, k in np.ndindex(expected.shape):
        cells = np.ndindex(x.shape[2:])
        expected[b, k] = math.fsum(s[b, i, j] * c[b, k] * x[b, k, i, j] for i, j in cells)
    given = [torch.from_numpy(array.copy()) for array in (x, s, c)]
    np.testing.assert_allclose(aggregate(*given).numpy(), expected, rtol=1e-5, atol=1e-12)
    for tensor, array in zip(given, (x, s, c), strict=True):
        np.testing.assert_array_equal(tensor.numpy(), array)


def test_gradients_reach_map_and_weights() -> None:
    parts = [torch.rand(shape, dtype=torch.float64, requires_grad=True) for shape in ((2, 3, 4, 5), (2, 4, 5), (2, 3))]
    assert torch.autograd.gradcheck(aggregate, parts)
