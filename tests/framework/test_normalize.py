"""Steps 5 and 7 against loops over rows, for NumPy arrays and torch tensors."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from crow.framework.normalize import NORMS, normalize
from crow.recipe import Norm, RecipeError

ROWS = np.array([[3.0, -4.0, 0.0], [0.0, 0.0, 0.0], [1e-9, 2e-9, -5e-9], [7e6, 0.0, 0.0], [0.1, 0.2, 0.3]])


def expected(rows: np.ndarray, norm: Norm) -> list[list[float]]:
    done = []
    for row in rows.tolist():
        powered = [math.copysign(abs(value) ** norm.power, value) if value else 0.0 for value in row]
        lengths = {"l2": math.hypot(*powered), "l1": math.fsum(map(abs, powered)), "none": 1.0}
        done.append([value / (lengths[norm.kind] or 1.0) for value in powered])
    return done


@pytest.mark.parametrize("power", [0.5, 1.0, 2.0])
@pytest.mark.parametrize("kind", NORMS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_rows_written_out(kind: str, power: float, dtype: type) -> None:
    norm, rows = Norm(kind, power), ROWS.astype(dtype)
    for result in (normalize(rows, norm), normalize(torch.from_numpy(rows.copy()), norm).numpy()):
        np.testing.assert_allclose(result, expected(rows, norm), rtol=1e-5, atol=1e-12)
        assert result.dtype == dtype
    np.testing.assert_array_equal(rows, ROWS.astype(dtype))


@pytest.mark.parametrize("power", [0.5, 1.0, 2.0])
@pytest.mark.parametrize("kind", NORMS)
def test_gradients(kind: str, power: float) -> None:
    rows = torch.tensor(ROWS[[0, 1, 4]], requires_grad=True)
    normalize(rows, Norm(kind, power)).sum().backward()
    assert rows.grad is not None and torch.isfinite(rows.grad).all()
    away_from_zero = torch.tensor([[3.0, -4.0, 1.0], [0.1, 0.2, -0.3]], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda v: normalize(v, Norm(kind, power)), away_from_zero)


def test_an_unknown_norm_lists_the_known_ones() -> None:
    with pytest.raises(RecipeError, match="'l3'; there are: l2, l1, none"):
        normalize(ROWS, Norm("l3"))
