"""Sums: the CroW reduction on the GPU in one pass over the map, for recipes that need no more than its sums."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from crow.extract.engines.driver import Launch, kernel, source
from crow.framework.normalize import normalize
from crow.framework.weight import OF_SHARES
from crow.recipe import Recipe

WIDTH = 512  # channels that the kernel is made for
CHUNK = 64  # places that one block of it sums
HIGHEST = 4  # power of a sum of channels, some 1e5, that float32 holds for all places together


@dataclass(frozen=True)
class Summing:
    """Sums of one map, wherever it lies: calling it gives them, (n, 2 K + 1), for what is in the map then."""

    launches: tuple[Launch, Launch]
    result: torch.Tensor
    used: tuple[torch.Tensor, ...]  # by the launches, so they must live as long

    def __call__(self) -> torch.Tensor:
        """Weighted sums, shares of places that fire, sum of S' ^ a."""
        for launch in self.launches:
            launch()
        return self.result.clone()


class Sums:
    """The kernels `sums` and `together` of `kernels/sums.cu`."""

    def __init__(self) -> None:
        self._sums, self._together = kernel(source("sums"), "sums"), kernel(source("sums"), "together")

    def of(self, x: torch.Tensor, table: torch.Tensor, recipe: Recipe) -> Summing:
        """What sums (n, H, W, K) canvases as a recipe wants them."""
        n, rows, columns, _ = x.shape
        pool, ceil = (2, int(recipe.pool.ceil)) if recipe.pool.kind == "max" else (1, 0)
        chunks = -(-(-(-rows // pool) * -(-columns // pool)) // CHUNK)
        partial = torch.empty((n, chunks, 2 * WIDTH + 1), device=x.device)
        result = torch.empty((n, 2 * WIDTH + 1), device=x.device)
        pools, count = [ctypes.c_int(v) for v in (pool, ceil)], ctypes.c_int(chunks)
        weigh, a = recipe.spatial.kind == "response", recipe.spatial.a
        power = [ctypes.c_int(weigh), ctypes.c_float(a), ctypes.c_float(1 / recipe.spatial.b)]
        shape = [ctypes.c_int(v) for v in (rows, columns)]
        parts = self._sums.launch((chunks, n), 256, x, *shape, table, *pools, *power, partial, count)
        largest = ctypes.c_int(int(np.isinf(a)))
        whole = self._together.launch((n, 1), WIDTH, partial, count, table, *pools, largest, result)
        return Summing((parts, whole), result, (x, table, partial))


def computes(recipe: Recipe) -> bool:
    """Whether these sums are all that a recipe needs of a map."""
    pools = recipe.pool.kind == "none" or (recipe.pool.kind, recipe.pool.size, recipe.pool.stride) == ("max", 2, 2)
    channels = recipe.channel.kind == "uniform" or recipe.channel.kind in OF_SHARES
    a, root = recipe.spatial.a, 1 / recipe.spatial.b
    small = root <= HIGHEST and (a <= HIGHEST or np.isinf(a))
    return pools and channels and (recipe.spatial.kind == "uniform" or (recipe.spatial.kind == "response" and small))


def weighed(sums: NDArray[np.float32], recipe: Recipe) -> NDArray[np.float32]:
    """(n, 2 K + 1) -> (n, K): the norm of S' and the channel weights, then step 5."""
    v, q, norm = (torch.from_numpy(part) for part in np.split(sums, [WIDTH, 2 * WIDTH], axis=1))
    if recipe.spatial.kind == "response":
        length = norm if np.isinf(recipe.spatial.a) else norm ** (1 / recipe.spatial.a)
        v = v / torch.where(length > 0, length, 1) ** (1 / recipe.spatial.b)
    if recipe.channel.kind in OF_SHARES:
        v = v * OF_SHARES[recipe.channel.kind](q, recipe.channel)
    rows: NDArray[np.float32] = normalize(v, recipe.norm).numpy()
    return rows
