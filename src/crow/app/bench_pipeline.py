"""What `crow bench pipeline` and `crow bench decode` measure: from a file on disk to a vector, stage by stage."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from crow.app.bench import Measure, milliseconds, spread, timed
from crow.extract.cores import granted_cores
from crow.extract.describer import Describer
from crow.extract.engines import Engine, Pictures
from crow.extract.images import load, prepare, resize
from crow.extract.walk import walk
from crow.framework.describe import describe
from crow.framework.reduce import Whitening
from crow.recipe import RECIPES, Recipe

BUSY = 90  # per cent of the time that the network is to be at work
SAMPLE = 24  # files whose stages are timed one by one


def pipeline(
    pictures: Path,
    count: int = 200,
    recipe: Recipe = RECIPES["crow"],
    engine: str | None = None,
    device: str | None = None,
) -> Iterator[Measure]:
    """Each stage alone, the slowest by name, and the whole: photographs from disk to vectors."""
    files = some(pictures, count)
    describer = Describer(recipe, engine, device)
    list(describer.stream((path, path) for path in files[:2]))  # wakes the engine
    stages = _stages(describer, files[:: max(1, len(files) // SAMPLE)])
    threads = min(8, granted_cores())
    for name, times in stages.items():
        yield Measure(f"{name}, one picture", median(times), "ms", spread(times))
    network = median(stages["network"])
    ahead = sum(median(stages[name]) for name in ("read", "decode", "resize")) / threads
    slowest = "the network" if network >= ahead else f"reading and decoding on {threads} threads"
    yield Measure(f"the stage that limits: {slowest}; its rate", 1000 / max(network, ahead), "pictures/s")
    yield from _whole(describer, files)


def _stages(describer: Describer, files: list[Path]) -> dict[str, list[float]]:
    """Milliseconds of every stage on every file, one after the other."""
    view, recipe = describer.recipe.view, describer.recipe
    stages: dict[str, list[float]] = {name: [] for name in ("read", "decode", "resize", "network", "CroW")}

    def took(name: str, step: Callable[[Any], Any], given: Any) -> Any:
        start = perf_counter()
        result = step(given)
        stages[name].append(1000 * (perf_counter() - start))
        return result

    for file in files:
        data = took("read", Path.read_bytes, file)
        picture = took("decode", lambda data: load(data, view.upright).pixels, data)
        pixels = took("resize", lambda picture: resize(picture, view.size), picture)
        x = took("network", lambda pixels: next(iter(describer.engine.maps([pixels]))), pixels)
        took("CroW", lambda x: describe(x, recipe), x)
    return stages


class Watched:
    """An engine that keeps count of the seconds it is at work."""

    def __init__(self, engine: Engine) -> None:
        self.name, self.precision, self.device, self.window = (
            engine.name,
            engine.precision,
            engine.device,
            engine.window,
        )
        self.engine, self.maps, self.seconds = engine, engine.maps, 0.0

    def vectors(self, pictures: Pictures, recipe: Recipe, regional: Whitening | None = None) -> NDArray[np.float32]:
        """The engine's own, timed."""
        start = perf_counter()
        rows = self.engine.vectors(pictures, recipe, regional)
        self.seconds += perf_counter() - start
        return rows


def _whole(describer: Describer, files: list[Path]) -> Iterator[Measure]:
    """All files through `Describer.stream`: pictures a second, and how long the network was at work."""
    describer.engine = watched = Watched(describer.engine)
    start = perf_counter()
    done = sum(described.vector is not None for described in describer.stream((path, path) for path in files))
    seconds = perf_counter() - start
    yield Measure(f"{done} photographs from disk to vectors", done / seconds, "pictures/s")
    share = 100 * watched.seconds / seconds
    yield Measure("the network at work", share, "% of the time", wanted=f"at least {BUSY}", holds=share >= BUSY)


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
