"""What the paper counts in feature maps: how sparse each channel is, and how weight goes with sparsity at each place."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from crow.recipe import Recipe, View

if TYPE_CHECKING:
    import torch

Counts = NDArray[np.float32]


@dataclass(frozen=True)
class Tally:
    """Counts in the map that a recipe weighs, asked for and kept in the way of its vectors."""

    recipe: Recipe
    regional: str = ""

    @property
    def name(self) -> str:
        """What it is called beside recipes."""
        return f"counts of {self.recipe.name}"

    @property
    def view(self) -> View:
        """The map that is looked at."""
        return self.recipe.view

    def key(self) -> str:
        """Equal keys make equal counts."""
        return f"tally-{self.recipe.key()}"

    def to_dict(self) -> dict[str, Any]:
        """A JSON-able dict."""
        return {"tally": self.recipe.to_dict()}


Wanted = Recipe | Tally


def counted(recipe: Wanted) -> Recipe:
    """The recipe itself, or that of the map which is counted in."""
    return recipe.recipe if isinstance(recipe, Tally) else recipe


def tally(x: torch.Tensor, recipe: Recipe) -> Counts:
    """(1, K, H, W) -> (1, 3 K + 2): the sparsity of each channel; then, by the number of channels that fire at a
    place, from 0 to K: how many places there are, and the sum of their spatial weights, the largest being 1."""
    from crow.framework.describe import pooled
    from crow.framework.weight import shares, spatial_weight

    y = pooled(x, recipe)
    weighed = spatial_weight(y, recipe.spatial)[0].cpu().numpy().ravel()
    firing = (y[0] > 0).sum(0).cpu().numpy().ravel()
    levels = y.shape[1] + 1
    places = np.bincount(firing, minlength=levels)
    sums = np.bincount(firing, weighed / (weighed.max() or 1), levels)
    sparsity = 1 - shares(y)[0].cpu().numpy()
    return np.concatenate([sparsity, places, sums])[None].astype(np.float32)


def sparsities(counts: Counts) -> Counts:
    """(n, 3 K + 2) -> (n, K): the sparsity of each channel, picture by picture."""
    return counts[:, : (counts.shape[1] - 2) // 3]


def mean_weights(counts: Counts) -> tuple[Counts, Counts, Counts]:
    """(n, 3 K + 2) -> three of (levels,): the sparsity at a place, the mean weight over all such places, their number."""
    channels = (counts.shape[1] - 2) // 3
    places, sums = np.split(counts[:, channels:].sum(0, dtype=np.float64), 2)
    seen = places > 0
    sparsity = 1 - np.arange(channels + 1) / channels
    return sparsity[seen], sums[seen] / places[seen], places[seen]


def correlations(counts: Iterable[Counts]) -> NDArray[np.float64]:
    """Counts of n pictures -> (n, n): the correlation of the sparsities of their channels, pair by pair."""
    return np.atleast_2d(np.corrcoef(sparsities(np.stack(list(counts)))))
