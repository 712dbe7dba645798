"""Steps 5 and 7: the power, then the norm. Works on NumPy arrays and torch tensors alike."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from crow.recipe import Norm, RecipeError

Array = Any  # numpy.ndarray or torch.Tensor; search normalises without importing torch


def l2(v: Array) -> Array:
    """(n, K) -> (n, K) rows of length 1; a zero row stays zero, also in its gradient."""
    squares = (v * v).sum(-1)[:, None]
    return v / (squares + (squares == 0)) ** 0.5


def l1(v: Array) -> Array:
    """(n, K) -> (n, K) rows whose absolute values sum to 1; a zero row stays zero."""
    total = abs(v).sum(-1)[:, None]
    return v / (total + (total == 0))


def none(v: Array) -> Array:
    """(n, K) -> (n, K) as it is."""
    return v


NORMS: dict[str, Callable[[Array], Array]] = {"l2": l2, "l1": l1, "none": none}


def normalize(v: Array, norm: Norm) -> Array:
    """(n, K) -> (n, K), each entry raised to the power with its sign kept, each row then normalised."""
    if norm.kind not in NORMS:
        raise RecipeError(f"no norm named {norm.kind!r}; there are: {', '.join(NORMS)}")
    if norm.power != 1:
        zero = v == 0  # the slope of a root is infinite at zero: keep it out of the gradient
        size = (abs(v) + zero) ** norm.power
        v = (v > 0) * size - (v < 0) * size
    return NORMS[norm.kind](v)
