"""Describer: pictures to vectors, over an engine. Decoding runs ahead in threads so that the network never waits."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from crow.extract import engines
from crow.extract.decoders import Decoder, decoder_for
from crow.extract.download import Report
from crow.extract.images import Picture, PictureError, Source, prepared
from crow.extract.picture import Pixels
from crow.framework.reduce import Whitening
from crow.recipe import RECIPES, Recipe, RecipeError, recipe_named

if TYPE_CHECKING:
    import torch

Box = tuple[float, float, float, float]
Group = tuple[list[Any], Future[Sequence[Picture | PictureError]]]  # keys, and their pictures when they are decoded
AHEAD = 4  # groups decoded ahead at least


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
        recipe: Recipe | str = RECIPES["crow"],
        engine: str | None = None,
        device: str | None = None,
        weights: str | Path | None = None,
        regional: Whitening | None = None,
        report: Report | None = None,
    ) -> None:
        from crow.extract.networks import load

        recipe = recipe_named(recipe) if isinstance(recipe, str) else recipe
        if bool(recipe.regional) != (regional is not None):
            raise RecipeError(f"{recipe.name} {'needs' if recipe.regional else 'takes no'} regional whitening")
        self.recipe = replace(recipe, regional=regional.fingerprint) if regional else recipe
        self.regional = regional
        network, self.weights = load(recipe.view.network, recipe.view.layer, Path(weights) if weights else None, report)
        self.engine = engines.engine_named(engine or engines.choose(recipe.view, device), network, device)
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

    @cached_property
    def _decoder(self) -> Decoder:
        """How its files become pixels; processes that it started end with this describer."""
        return decoder_for(self.engine)

    def maps(self, pictures: Source | Sequence[Source], box: Box | None = None) -> list[torch.Tensor]:
        """The feature maps (1, K, H, W), before the recipe's own pooling."""
        found = [prepared(picture, self.recipe.view, box) for picture in _many(pictures)]
        return list(self.engine.maps([_picture(each).pixels for each in found]))

    def stream(self, items: Iterable[tuple[Any, Source]], box: Box | None = None) -> Iterator[Described]:
        """(key, picture) pairs -> what became of each, in order; some windows are decoded and described ahead."""
        source, decoder, flights = iter(items), self._decoder, self.engine.flights
        groups = max(1, self.engine.window // decoder.group)
        waiting: deque[Group] = deque()
        running: deque[Future[list[Described]]] = deque()
        with (
            ThreadPoolExecutor(decoder.threads, "decode") as threads,
            ThreadPoolExecutor(flights, "network") as network,
        ):
            try:
                while True:
                    while len(waiting) < max(AHEAD, 2 * groups) and (group := list(islice(source, decoder.group))):
                        pictures = [picture for _, picture in group]
                        future = threads.submit(decoder, pictures, self.recipe.view, box)
                        waiting.append(([key for key, _ in group], future))
                    if waiting and len(running) <= flights:
                        window = [waiting.popleft() for _ in range(min(groups, len(waiting)))]
                        running.append(network.submit(self._describe, window))
                    elif running:
                        yield from running.popleft().result()
                    else:
                        return
            finally:
                for _, decoding in waiting:
                    decoding.cancel()
                for rows in running:
                    rows.cancel()

    def _describe(self, groups: list[Group]) -> list[Described]:
        """A window of pictures, as soon as they are decoded -> what became of each, in order."""
        pairs = (zip(keys, future.result(), strict=True) for keys, future in groups)
        window = list(chain.from_iterable(pairs))
        good = [picture.pixels for _, picture in window if isinstance(picture, Picture)]
        rows = iter(self._vectors(good))
        results = []
        for key, picture in window:
            found = picture.reason if isinstance(picture, PictureError) else next(rows)
            if isinstance(picture, PictureError) or isinstance(found, str):
                results.append(Described(key, None, reason=str(found)))
            else:
                results.append(Described(key, found, picture.width, picture.height, picture.taken))
        return results

    def _vectors(self, pictures: list[Pixels]) -> list[NDArray[np.float32] | str]:
        """A vector of each, or why there is none: where all do not fit into memory together, each is tried alone."""
        try:
            return list(self.engine.vectors(pictures, self.recipe, self.regional)) if pictures else []
        except engines.TooLargeError as error:
            if len(pictures) == 1:
                return [str(error)]
        return [found for picture in pictures for found in self._vectors([picture])]


def _picture(found: Picture | PictureError) -> Picture:
    """It, or the error raised."""
    if isinstance(found, PictureError):
        raise found
    return found


def _name(picture: Source) -> str | Path:
    return picture if isinstance(picture, (str, Path)) else "picture"


def _many(pictures: Source | Sequence[Source]) -> Sequence[Source]:
    return pictures if isinstance(pictures, (list, tuple)) else [pictures]  # type: ignore[list-item]
