"""Feature maps that every step must stand: as numbers a network would give, and as it rarely does."""

from __future__ import annotations

import numpy as np
import pytest


def fired(shape: tuple[int, ...], seed: int = 0, dead: float = 0.5, scale: float = 10.0) -> np.ndarray:
    """Like a ReLU's output: positive, many zeros, some channels all zero."""
    dice = np.random.default_rng(seed)
    x = dice.gamma(0.7, scale, shape) * (dice.random(shape) > dead)
    x[:, dice.random(shape[1]) < 0.15] = 0
    return x


def one_active(shape: tuple[int, ...]) -> np.ndarray:
    x = np.zeros(shape)
    x[0, shape[1] // 2, shape[2] // 2, shape[3] // 3] = 3.7
    return x


MAPS = {
    "ordinary": fired((1, 12, 7, 10), seed=1),
    "batch of three": fired((3, 9, 8, 6), seed=2),
    "odd size": fired((1, 8, 13, 9), seed=3),
    "1 x N": fired((2, 10, 1, 15), seed=4),
    "N x 1": fired((1, 10, 11, 1), seed=5),
    "1 x 1": fired((2, 16, 1, 1), seed=6, dead=0.2),
    "2 x 2": fired((1, 16, 2, 2), seed=7),
    "one channel": fired((1, 1, 5, 6), seed=8, dead=0.1) + 0.1,
    "no zero anywhere": fired((1, 8, 6, 9), seed=9, dead=0.0) + 0.5,
    "all zero": np.zeros((2, 8, 6, 7)),
    "one of two all zero": np.concatenate([fired((1, 8, 6, 7), seed=10), np.zeros((1, 8, 6, 7))]),
    "one active cell": one_active((1, 8, 6, 9)),
    "large": fired((1, 8, 6, 9), seed=11, scale=5000.0),
    "small": fired((1, 8, 6, 9), seed=12, scale=1e-4),
}


@pytest.fixture(params=MAPS.values(), ids=MAPS.keys())
def x(request: pytest.FixtureRequest) -> np.ndarray:
    """(B, K, H, W) float64, never to be written to."""
    shared = request.param.copy()
    shared.flags.writeable = False
    return shared
