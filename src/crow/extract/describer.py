"""Describer: pictures to vectors, over an engine. Decoding runs ahead in threads so that the network never waits."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from crow.extract import engines
from crow.extract.cores import granted_cores
from crow.extract.download import Report
from crow.extract.images import Picture, PictureError, Source, prepare
from crow.framework.reduce import Whitening
from crow.recipe import RECIPES, Recipe, RecipeError

if TYPE_CHECKING:
    import torch

Box = tuple[float, float, float, float]
NETWORK_PIXELS = 32_000_000  # through VGG16 in float32 such a picture takes some 16 GB


@dataclass(frozen=True)
class Described:
    """What became of one picture: a vector, or the reason why there is none."""

    key: Any
    vector: NDArray[np.float32] | None
    width: int = 0
    height: int = 0
    taken: str | None = None
    reason: str | None = None


class Describer:
    """A recipe on a network on an engine; `describer(pictures)` gives (n, K) float32 unit rows."""

    def __init__(
        self,
        recipe: Recipe = RECIPES["crow"],
        engine: str | None = None,
        device: str | None = None,
        weights: str | Path | None = None,
        regional: Whitening | None = None,
        report: Report | None = None,
    ) -> None:
        from crow.extract.networks import load

        if bool(recipe.regional) != (regional is not None):
            raise RecipeError(f"{recipe.name} {'needs' if recipe.regional else 'takes no'} regional whitening")
        self.recipe = replace(recipe, regional=regional.fingerprint) if regional else recipe
        self.regional = regional
        network, self.weights = load(recipe.view.network, recipe.view.layer, Path(weights) if weights else None, report)
        self.engine = engines.engine_named(engine or engines.choose(device), network, device)
        self.precision = self.engine.precision

    def __repr__(self) -> str:
        return f"Describer({self.recipe.name}, {self.recipe.view.network}, {self.engine.name} on {self.engine.device})"

    def __call__(self, pictures: Source | Sequence[Source], box: Box | None = None) -> NDArray[np.float32]:
        """One picture or many, of any mix of sizes -> (n, K) float32 unit rows, in order; a bad one raises."""
        sources = _many(pictures)
        rows = []
        for described in self.stream(enumerate(sources), box):
            if described.vector is None:
                raise PictureError(_name(sources[described.key]), described.reason or "")
            rows.append(described.vector)
        return np.stack(rows) if rows else np.zeros((0, self.dim), np.float32)

    @cached_property
    def dim(self) -> int:
        """K, the length of a vector."""
        return int(self.engine.vectors([np.zeros((64, 64, 3), np.uint8)], self.recipe, self.regional).shape[1])

    def maps(self, pictures: Source | Sequence[Source], box: Box | None = None) -> list[torch.Tensor]:
        """The feature maps (1, K, H, W), before the recipe's own pooling."""
        return list(self.engine.maps([self._prepare(picture, box).pixels for picture in _many(pictures)]))

    def stream(self, items: Iterable[tuple[Any, Source]], box: Box | None = None) -> Iterator[Described]:
        """(key, picture) pairs -> what became of each, in order, with at most two windows of pictures in memory."""
        window, source = self.engine.window, iter(items)
        with ThreadPoolExecutor(min(8, granted_cores()), "decode") as threads:
            waiting: deque[tuple[Any, Future[Picture]]] = deque()
            try:
                while True:
                    for key, picture in islice(source, 2 * window - len(waiting)):
                        waiting.append((key, threads.submit(self._prepare, picture, box)))
                    if not waiting:
                        return
                    yield from self._describe([waiting.popleft() for _ in range(min(window, len(waiting)))])
            finally:
                for _, future in waiting:
                    future.cancel()

    def _prepare(self, picture: Source, box: Box | None) -> Picture:
        prepared = prepare(picture, self.recipe.view, box)
        height, width = prepared.pixels.shape[:2]
        if height * width > NETWORK_PIXELS:
            raise PictureError(_name(picture), f"{width} x {height} pixels are too many for the network: give a --size")
        return prepared

    def _describe(self, window: list[tuple[Any, Future[Picture]]]) -> list[Described]:
        """A window of decoded pictures -> what became of each, in order."""
        results: list[Described | None] = [None] * len(window)
        good: list[tuple[int, Any, Picture]] = []
        for i, (key, future) in enumerate(window):
            try:
                good.append((i, key, future.result()))
            except PictureError as error:
                results[i] = Described(key, None, reason=error.reason)
            except MemoryError:
                results[i] = Described(key, None, reason="not enough memory to read it")
        if good:
            rows = self.engine.vectors([picture.pixels for _, _, picture in good], self.recipe, self.regional)
            for (i, key, picture), row in zip(good, rows, strict=True):
                results[i] = Described(key, row, picture.width, picture.height, picture.taken)
        return [result for result in results if result is not None]


def _name(picture: Source) -> str | Path:
    return picture if isinstance(picture, (str, Path)) else "picture"


def _many(pictures: Source | Sequence[Source]) -> Sequence[Source]:
    return pictures if isinstance(pictures, (list, tuple)) else [pictures]  # type: ignore[list-item]
