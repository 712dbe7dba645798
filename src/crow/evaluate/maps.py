"""Engines around an engine: many vectors from one pass of the network, and feature maps kept on disk."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from zipfile import BadZipFile

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from crow.evaluate.tally import Tally, counted, tally
from crow.extract.engines import Engine, Pictures
from crow.extract.networks import Preprocessed
from crow.files import replacing
from crow.framework.describe import describe, pooled
from crow.framework.reduce import Whitening
from crow.recipe import Pool, Recipe


class Tapped(nn.Module):
    """A VGG whose one output holds the maps of several of its layers, flat, one after the other."""

    def __init__(self, network: Preprocessed, layers: Sequence[str]) -> None:
        super().__init__()
        self.network, self.layers = network, tuple(layers)

    def forward(self, pictures: torch.Tensor) -> torch.Tensor:
        """(B, 3, h, w) -> (B, sum of all K H W, 1, 1)."""
        x = (pictures.to(self.network.mean.dtype) - self.network.mean) / self.network.std
        maps = []
        for name, step in self.network.body.named_children():
            x = step(x)
            if self._taps(name):
                maps.append(x.flatten(1))
        return torch.cat(maps, 1)[:, :, None, None]

    def apart(self, flat: torch.Tensor, height: int, width: int) -> dict[str, torch.Tensor]:
        """(1, sum of all K H W, 1, 1) of a picture of this size -> the (1, K, H, W) of each layer."""
        maps, start, channels = {}, 0, 3
        for name, step in self.network.body.named_children():
            if isinstance(step, nn.Conv2d):
                channels = step.out_channels
            elif isinstance(step, nn.MaxPool2d):
                height, width = ((n + 1) // 2 if step.ceil_mode else n // 2 for n in (height, width))
            if self._taps(name):
                end = start + channels * height * width
                maps[name.replace("relu", "conv")] = flat[:, start:end].reshape(1, channels, height, width)
                start = end
        assert start == flat.shape[1], "the map has another size than the network's layers make of this picture"
        return maps

    def _taps(self, name: str) -> bool:
        return name.startswith("relu") and name.replace("relu", "conv") in self.layers


class SideBySide:
    """An engine whose vectors are those of several recipes, one after the other; `parts` says where.

    The recipes share their view, or all of it but the layer: then the engine is to run a network tapped at all of them.
    """

    flights = 1

    def __init__(
        self,
        engine: Engine,
        recipes: Sequence[Recipe | Tally],
        regional: Mapping[str, Whitening],
        tapped: Tapped | None = None,
    ) -> None:
        self.engine, self.recipes, self.regional, self.tapped = engine, recipes, regional, tapped
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
        only = self.recipes[0]
        if len(self.recipes) == 1 and isinstance(only, Recipe):
            blocks = [self.engine.vectors(pictures, only, self.regional.get(only.regional))]
        else:
            maps = zip(self.engine.maps(pictures), pictures, strict=True)
            rows = [self._all(x, *picture.shape[:2]) for x, picture in maps]
            blocks = [np.concatenate(block) for block in zip(*rows, strict=True)]
        ends = np.cumsum([0, *(block.shape[1] for block in blocks)])
        self.parts = [slice(int(a), int(b)) for a, b in pairwise(ends)]
        return np.concatenate(blocks, axis=1)

    def _all(self, x: torch.Tensor, height: int, width: int) -> list[NDArray[np.float32]]:
        """What the network made of a picture -> the (1, K) of each recipe."""
        by_layer = self.tapped.apart(x, height, width) if self.tapped else {}
        pools: dict[tuple[str, Pool], torch.Tensor] = {}  # most recipes pool alike: once for all of them
        rows = []
        for wanted in self.recipes:
            recipe, mine = counted(wanted), by_layer.get(wanted.view.layer, x)
            if recipe.pool.kind == "max":
                place = (recipe.view.layer, recipe.pool)
                pools[place] = mine = pools[place] if place in pools else pooled(mine, recipe)
                recipe = replace(recipe, pool=Pool("none"))
            rows.append(self._one(mine, recipe, isinstance(wanted, Tally)))
        return rows

    def _one(self, x: torch.Tensor, recipe: Recipe, counts: bool) -> NDArray[np.float32]:
        if counts:
            return tally(x, recipe)
        return describe(x, recipe, self.regional.get(recipe.regional)).cpu().numpy()


class KeptMaps:
    """An engine that keeps its feature maps, for trying out weightings: each some megabytes of disk."""

    flights = 1

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
        file = self.folder / f"{digest}.npz"  # with a checksum inside, which reading compares
        try:
            with np.load(file, allow_pickle=False) as kept:
                return torch.from_numpy(kept["map"])
        except (OSError, ValueError, KeyError, EOFError, BadZipFile):  # not there, or damaged: made (again)
            made = next(iter(self.engine.maps([picture]))).cpu()
            with replacing(file) as half, half.open("wb") as out:
                np.savez(out, map=made.numpy())
            return made

    def vectors(self, pictures: Pictures, recipe: Recipe, regional: Whitening | None = None) -> NDArray[np.float32]:
        """n pictures -> (n, K), in order."""
        return np.concatenate([describe(x, recipe, regional).cpu().numpy() for x in self.maps(pictures)])
