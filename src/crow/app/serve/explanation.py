"""Why a result matches: what every cell of either picture adds to the score, and the regions that add most."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crow.recipe import Recipe

Pixels = NDArray[np.uint8]


@dataclass(frozen=True, eq=False)
class Side:
    """One of the two pictures: its pixels as the network saw them, and the part of the original they show."""

    pixels: Pixels  # (h, w, 3)
    part: tuple[float, float, float, float]  # xmin, ymin, xmax, ymax in pixels of the upright original


def explain(describer: Any, whitening: Any, query: Side, result: Side) -> dict[str, Any]:
    """The score of a pair, and both sides of its explanation; with a linear recipe each side adds up to the score."""
    from crow.framework import explain as why
    from crow.framework.describe import describe

    recipe, sides = describer.recipe, (query, result)
    maps = [next(iter(describer.engine.maps([side.pixels]))) for side in sides]
    raw = np.concatenate([describe(x, recipe, describer.regional).cpu().numpy() for x in maps])
    finals = whitening.apply(raw) if whitening else raw
    linear = why.is_linear(recipe)
    panels = []
    for i, (side, x) in enumerate(zip(sides, maps, strict=True)):
        if linear:
            cells, constant = why.score_cells(why.cell_vectors(x, recipe), finals[1 - i], whitening)
        else:
            cells, constant = why.alike_cells(x, maps[1 - i]), 0.0
        extent = _extent(side, cells.shape, _stride(recipe))
        panels.append(
            {
                "cells": np.round(cells, 9).tolist(),
                "constant": round(constant, 9),
                "extent": extent,
                "region": _inside(extent, side.part, why.best_region(cells), cells.shape),
                "weights": None if recipe.pool.kind == "regions" else _weights(x, recipe),
            }
        )
    score = float(finals[0].astype(np.float64) @ finals[1].astype(np.float64))
    return {"score": score, "linear": linear, "recipe": recipe.name, "query": panels[0], "result": panels[1]}


def _weights(x: Any, recipe: Recipe) -> list[list[float]] | None:
    """The recipe's spatial weights; None where it weighs no places."""
    from crow.framework.explain import spatial_map

    if recipe.spatial.kind == "uniform":
        return None
    return np.round(spatial_map(x, recipe), 6).tolist()


def _extent(side: Side, shape: tuple[int, ...], stride: int) -> list[float]:
    """Where the grid of cells lies in the original: a last row or column that pooling dropped is not covered."""
    left, top, right, bottom = side.part
    height, width = side.pixels.shape[:2]
    across = min(shape[1] * stride / width, 1.0) if shape[1] * stride > width / 2 else 1.0
    down = min(shape[0] * stride / height, 1.0) if shape[0] * stride > height / 2 else 1.0
    return [left, top, left + (right - left) * across, top + (bottom - top) * down]


def _inside(
    extent: list[float], part: tuple[float, ...], region: tuple[int, int, int, int], shape: tuple[int, ...]
) -> list[float]:
    """A rectangle of cells as a box in pixels of the original."""
    x, y, width, height = region
    sx, sy = (extent[2] - extent[0]) / shape[1], (extent[3] - extent[1]) / shape[0]
    box = extent[0] + x * sx, extent[1] + y * sy, extent[0] + (x + width) * sx, extent[1] + (y + height) * sy
    return [round(v, 1) for v in (box[0], box[1], min(box[2], part[2]), min(box[3], part[3]))]


@lru_cache(maxsize=4)
def _stride(recipe: Recipe) -> int:
    from crow.extract.networks import receptive_field

    stride: int = receptive_field(recipe)[1]
    return stride
