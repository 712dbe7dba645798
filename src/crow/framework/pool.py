"""Step 1: local pooling of the feature map, each channel by itself."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

import torch
import torch.nn.functional as F

from crow.recipe import Pool, RecipeError

OVERLAP = Fraction(2, 5)  # of neighbouring R-MAC regions along the longer side, as published


def none(x: torch.Tensor, pool: Pool) -> torch.Tensor:
    """(B, K, H, W) -> (B, K, H, W): a 1 x 1 neighbourhood."""
    return x


def local_max(x: torch.Tensor, pool: Pool) -> torch.Tensor:
    """(B, K, H, W) -> (B, K, h, w), the largest response of each neighbourhood."""
    return F.max_pool2d(x, _neighbourhood(x, pool), pool.stride, ceil_mode=pool.ceil)


def local_sum(x: torch.Tensor, pool: Pool) -> torch.Tensor:
    """(B, K, H, W) -> (B, K, h, w), the summed responses of each neighbourhood."""
    return F.avg_pool2d(x, _neighbourhood(x, pool), pool.stride, ceil_mode=pool.ceil, divisor_override=1)


def global_max(x: torch.Tensor, pool: Pool) -> torch.Tensor:
    """(B, K, H, W) -> (B, K, 1, 1): MAC."""
    return x.amax((2, 3), keepdim=True)


def power_mean(x: torch.Tensor, pool: Pool) -> torch.Tensor:
    """(B, K, H, W) -> (B, K, 1, 1): GeM, inputs clamped at 1e-6 as published."""
    clamped = x.clamp(min=1e-6)
    largest = clamped.amax((2, 3), keepdim=True)  # divided out, so that no power overflows or vanishes
    return largest * (clamped / largest).pow(pool.p).mean((2, 3), keepdim=True).pow(1 / pool.p)


def regions(x: torch.Tensor, pool: Pool) -> torch.Tensor:
    """(B, K, H, W) -> (B, K, 1, R): the maximum over each region of R-MAC's grid, the whole map first."""
    maxima = [
        x[:, :, top : top + height, left : left + width].amax((2, 3))
        for left, top, width, height in region_grid(x, pool)
    ]
    return torch.stack(maxima, -1)[:, :, None]


POOLS: dict[str, Callable[[torch.Tensor, Pool], torch.Tensor]] = {
    "none": none,
    "max": local_max,
    "sum": local_sum,
    "global-max": global_max,
    "power-mean": power_mean,
    "regions": regions,
}


def pool(x: torch.Tensor, pool: Pool) -> torch.Tensor:
    """(B, K, H, W) -> (B, K, h, w)."""
    if pool.kind not in POOLS:
        raise RecipeError(f"no pooling named {pool.kind!r}; there are: {', '.join(POOLS)}")
    return POOLS[pool.kind](x, pool)


def region_grid(x: torch.Tensor, pool: Pool) -> list[tuple[int, int, int, int]]:
    """(B, K, H, W) -> R boxes (left, top, width, height): the whole map, then `levels` grids of square regions."""
    height, width = x.shape[2:]
    extra_x, extra_y = _extra_regions(width, height)
    boxes = [(0, 0, width, height)]
    for level in range(1, pool.levels + 1):
        side = 2 * min(width, height) // (level + 1)
        if side:
            lefts = _starts(width, side, level + extra_x)
            tops = _starts(height, side, level + extra_y)
            boxes += [(left, top, side, side) for top in tops for left in lefts]
    return boxes


def _extra_regions(width: int, height: int) -> tuple[int, int]:
    """How many regions more than the level's number fit along x and y so that neighbours overlap by about 40 %."""
    if width == height:
        return 0, 0
    side, longer = min(width, height), max(width, height)
    extra = min(range(1, 7), key=lambda steps: abs(1 - Fraction(longer - side, steps * side) - OVERLAP))
    return (extra, 0) if width > height else (0, extra)


def _starts(length: int, side: int, count: int) -> list[int]:
    """Where `count` regions of `side` begin along `length`: evenly spread, rounded down, the last at the border."""
    return [i * (length - side) // max(count - 1, 1) for i in range(count)]


def _neighbourhood(x: torch.Tensor, pool: Pool) -> tuple[int, int]:
    """The pooling window (height, width), cut to maps that are smaller than it."""
    width, height = pool.size if isinstance(pool.size, tuple) else (pool.size, pool.size)
    return min(height, x.shape[2]), min(width, x.shape[3])
