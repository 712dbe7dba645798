"""Engines around an engine: the vectors of several recipes from one feature map, and feature maps kept on disk."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from crow.extract.engines import Engine, Pictures
from crow.framework.describe import describe
from crow.framework.reduce import Whitening
from crow.recipe import Recipe


class SideBySide:
    """An engine whose vectors are those of several recipes of one view, one after the other; `parts` says where."""

    def __init__(self, engine: Engine, recipes: Sequence[Recipe], regional: Mapping[str, Whitening]) -> None:
        self.engine, self.recipes, self.regional = engine, recipes, regional
        self.name, self.precision, self.device, self.window = (
            engine.name,
            engine.precision,
            engine.device,
            engine.window,
        )
        self.parts = [slice(0)] * len(recipes)

    def maps(self, pictures: Pictures) -> Iterator[torch.Tensor]:
        """The map (1, K, H, W) of each picture, in order."""
        return self.engine.maps(pictures)

    def vectors(self, pictures: Pictures, recipe: Recipe, regional: Whitening | None = None) -> NDArray[np.float32]:
        """n pictures -> (n, sum of all K), in order; one recipe alone takes the engine's own way."""
        if len(self.recipes) == 1:
            only = self.recipes[0]
            blocks = [self.engine.vectors(pictures, only, self.regional.get(only.regional))]
        else:
            rows = [self._all(x) for x in self.engine.maps(pictures)]
            blocks = [np.concatenate(block) for block in zip(*rows, strict=True)]
        ends = np.cumsum([0, *(block.shape[1] for block in blocks)])
        self.parts = [slice(int(a), int(b)) for a, b in pairwise(ends)]
        return np.concatenate(blocks, axis=1)

    def _all(self, x: torch.Tensor) -> list[NDArray[np.float32]]:
        """(1, K, H, W) -> the (1, K) of each recipe."""
        return [describe(x, recipe, self.regional.get(recipe.regional)).cpu().numpy() for recipe in self.recipes]


class KeptMaps:
    """An engine that keeps its feature maps, for trying out weightings: each some megabytes of disk."""

    def __init__(self, engine: Engine, folder: Path) -> None:
        self.engine, self.folder = engine, folder
        self.name, self.precision, self.device, self.window = (
            engine.name,
            engine.precision,
            engine.device,
            engine.window,
        )
        folder.mkdir(parents=True, exist_ok=True)

    def maps(self, pictures: Pictures) -> Iterator[torch.Tensor]:
        """The map (1, K, H, W) of each picture, in order."""
        for picture in pictures:
            yield self._map(picture)

    def _map(self, picture: NDArray[np.uint8]) -> torch.Tensor:
        digest = hashlib.sha256(repr(picture.shape).encode() + np.ascontiguousarray(picture).tobytes()).hexdigest()
        file = self.folder / f"{digest}.npy"
        if not file.exists():
            half = file.with_suffix(".half")
            with half.open("wb") as out:
                np.save(out, next(iter(self.engine.maps([picture]))).cpu().numpy())
            half.replace(file)
        return torch.from_numpy(np.load(file, allow_pickle=False))

    def vectors(self, pictures: Pictures, recipe: Recipe, regional: Whitening | None = None) -> NDArray[np.float32]:
        """n pictures -> (n, K), in order."""
        return np.concatenate([describe(x, recipe, regional).cpu().numpy() for x in self.maps(pictures)])
