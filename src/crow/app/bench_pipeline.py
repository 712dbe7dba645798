"""What `crow bench pipeline` and `crow bench decode` measure: from a file on disk to a vector, stage by stage."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import chain
from pathlib import Path
from statistics import median
from threading import Lock
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from crow.app.bench import Measure, milliseconds, spread, timed
from crow.extract.cores import granted_cores
from crow.extract.decoders import decoder_for
from crow.extract.describer import Describer
from crow.extract.engines import Engine, Pictures
from crow.extract.images import Picture, prepare
from crow.extract.walk import walk
from crow.framework.reduce import Whitening
from crow.recipe import RECIPES, Recipe, Size, View

BUSY = 90  # per cent of the time that a processor's network is to be at work
ROUNDS = 3
ALL = View(size=Size("original"))
Stage = Callable[[Any], Any]


def pipeline(
    pictures: Path,
    count: int = 200,
    recipe: Recipe = RECIPES["crow"],
    engine: str | None = None,
    device: str | None = None,
) -> Iterator[Measure]:
    """Each stage alone with all that it may use, the slowest by name, and the whole: photographs from disk to vectors."""
    files = some(pictures, count)
    describer = Describer(recipe, engine, device)
    list(describer.stream((path, path) for path in files))  # wakes the engine and what decodes
    rates = _stages(describer, files)
    for name, found in rates.items():
        yield Measure(f"{name}, alone", median(found), "pictures/s", spread(found))
    slowest = min(rates, key=lambda name: median(rates[name]))
    yield Measure(f"the stage that limits: {slowest}; its rate", median(rates[slowest]), "pictures/s")
    yield from _whole(describer, files)


def _stages(describer: Describer, files: list[Path]) -> dict[str, list[float]]:
    """Pictures a second of every stage, on all files, as the pipeline runs it, in every round."""
    view, engine, rates = describer.recipe.view, describer.engine, defaultdict[str, list[float]](list)
    decoder = decoder_for(engine)
    with ThreadPoolExecutor(decoder.threads) as pool:

        def at(name: str, step: Stage, given: list[Any]) -> list[Any]:
            for _ in range(ROUNDS):
                start = perf_counter()
                found = list(step(given))
                rates[name].append(len(files) / (perf_counter() - start))
            return found

        def decoded(view: View) -> Stage:
            return lambda given: chain.from_iterable(pool.map(lambda group: decoder(group, view, None), given))

        data = at("read", lambda files: pool.map(Path.read_bytes, files), files)
        groups = [data[i : i + decoder.group] for i in range(0, len(data), decoder.group)]
        at("decode", decoded(replace(ALL, upright=view.upright)), groups)
        found = at("decode and resize", decoded(view), groups)
        pixels = [picture.pixels for picture in found if isinstance(picture, Picture)]
        if engine.device != "cpu" and isinstance(pixels[0], np.ndarray):
            at("upload", _uploader(engine.device, max(one.size for one in pixels)), pixels)
        windows = [pixels[i : i + engine.window] for i in range(0, len(pixels), engine.window)]
        at("network and CroW", lambda windows: [engine.vectors(one, describer.recipe) for one in windows], windows)
    return rates


def _uploader(device: str, size: int) -> Stage:
    """Pictures from the host's memory to the GPU, through memory that its copy engine reads by itself."""
    import torch

    pinned = torch.empty(size, dtype=torch.uint8, pin_memory=True)

    def upload(pictures: list[Any]) -> list[Any]:
        there = []
        for pixels in pictures:
            torch.cuda.synchronize()
            pinned.numpy()[: pixels.size] = pixels.reshape(-1)
            there.append(pinned[: pixels.size].to(device, non_blocking=True))
        torch.cuda.synchronize()
        return there

    return upload


class Watched:
    """An engine that keeps count of the seconds it is at work."""

    def __init__(self, engine: Engine) -> None:
        self.engine, self.seconds = engine, 0.0
        self._lock, self._running, self._since = Lock(), 0, 0.0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.engine, name)

    def vectors(self, pictures: Pictures, recipe: Recipe, regional: Whitening | None = None) -> NDArray[np.float32]:
        """The engine's own, timed."""
        with self._lock:
            self._since = self._since if self._running else perf_counter()
            self._running += 1
        try:
            return self.engine.vectors(pictures, recipe, regional)
        finally:
            with self._lock:
                self._running -= 1
                self.seconds += 0.0 if self._running else perf_counter() - self._since


def _whole(describer: Describer, files: list[Path]) -> Iterator[Measure]:
    """All files through `Describer.stream`: pictures a second, and how long the network was at work."""
    watched: Any = Watched(describer.engine)
    describer.engine = watched
    rates, shares = [], []
    for _ in range(ROUNDS):
        watched.seconds, start = 0.0, perf_counter()
        done = sum(described.vector is not None for described in describer.stream((path, path) for path in files))
        seconds = perf_counter() - start
        rates.append(done / seconds)
        shares.append(100 * watched.seconds / seconds)
    yield Measure(f"{done} photographs from disk to vectors", median(rates), "pictures/s", spread(rates))
    share = median(shares)
    words, holds = (f"at least {BUSY}", share >= BUSY) if watched.device == "cpu" else ("", None)
    yield Measure("the network at work", share, "% of the time", spread(shares), wanted=words, holds=holds)


def decode(pictures: Path, count: int = 100, recipe: Recipe = RECIPES["crow"]) -> Iterator[Measure]:
    """Files to pixels ready for the network, on one thread and on all, against Pillow as the peers use it."""
    files = some(pictures, count)
    view = recipe.view

    def peers(path: Path) -> Image.Image:
        with Image.open(path) as image:
            picture = image.convert("RGB")
        picture.thumbnail((view.size.pixels or picture.width,) * 2, Image.Resampling.LANCZOS)
        return picture

    ours, theirs = timed({"ours": lambda path: prepare(path, view), "theirs": peers}, files, block=10).values()
    rival = {"Pillow: open, convert, thumbnail": 1000 / median(theirs)}
    rate = 1000 / median(ours)
    yield Measure("decode, one thread", rate, "pictures/s", ratio=median(theirs) / median(ours), rivals=rival)
    threads = granted_cores()
    with ThreadPoolExecutor(threads) as pool:
        whole = milliseconds(lambda files: list(pool.map(lambda path: prepare(path, view), files)), files)
    yield Measure(f"decode, {threads} threads", 1000 * len(files) / whole, "pictures/s")
    size = sum(len(path.read_bytes()) for path in files) / len(files)
    yield Measure("a file, on average", size / 1000, "kB")


def some(pictures: Path, count: int) -> list[Path]:
    """So many picture files below a folder, evenly spread."""
    files = list(walk([pictures]))
    if not files:
        raise ValueError(f"{pictures}: no pictures to measure with")
    return files[:: max(1, len(files) // count)][:count]
