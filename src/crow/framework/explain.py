"""Why a vector is what it is: the contribution of every cell to a vector, and to the score of two pictures.

Before whitening the vector is a sum over cells, and whitening is linear, so the cosine splits exactly into cells on
either side, up to the last norm's constant; the whitening's mean adds one constant more.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from crow.framework.describe import pooled
from crow.framework.pool import region_grid
from crow.framework.reduce import Whitening
from crow.framework.weight import channel_weight, shares, spatial_weight
from crow.recipe import Recipe

Cells = NDArray[np.float64]
LINEAR_POOLS = ("none", "max", "sum", "regions")  # global pools pick or mix places: no cell has a share of its own


def is_linear(recipe: Recipe) -> bool:
    """Whether the vector is a weighted sum over cells, so that each cell's share can be told exactly."""
    norms = recipe.norm.power == recipe.final.power == 1 and recipe.final.kind == recipe.norm.kind == "l2"
    return recipe.pool.kind in LINEAR_POOLS and norms and not recipe.regional


def cell_vectors(x: torch.Tensor, recipe: Recipe) -> Cells:
    """(1, K, H, W) -> (h, w, K) shares that sum to the picture's unit vector."""
    if not is_linear(recipe):
        raise ValueError(f"the vector of {recipe.name} is no sum over cells: there is nothing exact to show")
    y = pooled(x, recipe)
    shared = y * spatial_weight(y, recipe.spatial)[:, None] * channel_weight(y, recipe.channel)[:, :, None, None]
    cells = shared[0].permute(1, 2, 0).double().cpu().numpy()
    cells = cells / (np.linalg.norm(cells.sum((0, 1))) or 1.0)
    return _spread(cells[0], x, recipe) if recipe.pool.kind == "regions" else cells


def score_cells(cells: Cells, other: NDArray[Any], whitening: Whitening | None = None) -> tuple[Cells, float]:
    """(h, w, K) shares and the other side's final unit vector (d,) -> (h, w) and a constant; together the cosine."""
    if whitening is None:
        return cells @ np.asarray(other, np.float64), 0.0
    axis = whitening.projection @ np.asarray(other, np.float64)
    length = float(np.linalg.norm((cells.sum((0, 1)) - whitening.mean) @ whitening.projection)) or 1.0
    return cells @ axis / length, float(-(whitening.mean @ axis) / length)


def alike_cells(x: torch.Tensor, other: torch.Tensor) -> Cells:
    """(1, K, H, W), (1, K, h, w) -> (H, W): the cosine of every place with the sum of the other map.

    Where a recipe is not linear there are no exact shares; this says where the two pictures look alike at all.
    """
    places, whole = x[0].double(), other[0].double().sum((1, 2))
    lengths = places.norm(dim=0) * whole.norm()
    dots = torch.einsum("khw,k->hw", places, whole)
    return torch.where(lengths > 0, dots / torch.where(lengths > 0, lengths, 1), 0).cpu().numpy()


def best_region(contributions: Cells) -> tuple[int, int, int, int]:
    """(h, w) -> cells (x, y, width, height): the rectangle that holds most above what its size would hold on average."""
    excess = contributions - contributions.mean()
    table = np.zeros((excess.shape[0] + 1, excess.shape[1] + 1))
    table[1:, 1:] = excess.cumsum(0).cumsum(1)
    best, box = -np.inf, (0, 0, 1, 1)
    for top in range(excess.shape[0]):
        for bottom in range(top + 1, excess.shape[0] + 1):
            edge = table[bottom] - table[top]
            lowest = np.minimum.accumulate(edge)
            right = int((edge[1:] - lowest[:-1]).argmax()) + 1
            if edge[right] - lowest[right - 1] > best:
                best, left = edge[right] - lowest[right - 1], int(edge[:right].argmin())
                box = (left, top, right - left, bottom - top)
    return box


def spatial_map(x: torch.Tensor, recipe: Recipe) -> Cells:
    """(1, K, H, W) -> (h, w): the recipe's spatial weights."""
    return spatial_weight(pooled(x, recipe), recipe.spatial)[0].double().cpu().numpy()


def rarest_active(x: torch.Tensor, recipe: Recipe, count: int = 10) -> tuple[list[int], NDArray[np.bool_]]:
    """(1, K, H, W) -> the channels that fire most rarely, but do fire, and the (h, w) places where any of them does."""
    y = pooled(x, recipe)
    q = shares(y)[0]
    active = [int(k) for k in torch.argsort(q, stable=True) if q[k] > 0][:count]
    return active, (y[0, active] > 0).any(0).cpu().numpy()


def _spread(regions: Cells, x: torch.Tensor, recipe: Recipe) -> Cells:
    """(R, K) shares of regions -> (H, W, K), each region's share spread evenly over its cells."""
    cells = np.zeros((x.shape[2], x.shape[3], regions.shape[1]))
    for share, (left, top, width, height) in zip(regions, region_grid(x, recipe.pool), strict=True):
        cells[top : top + height, left : left + width] += share / (width * height)
    return cells
