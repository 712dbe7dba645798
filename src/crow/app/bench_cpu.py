"""What `crow bench network` measures on a processor: milliseconds from one picture to its vector."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from statistics import median
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from crow.app.bench import Measure, against, milliseconds, operations, spread, timed
from crow.extract.engines import Engine
from crow.extract.networks import load
from crow.framework.describe import describe
from crow.recipe import Recipe

WIDTH, HEIGHT = 640, 480
WANTED = {"exact": 3.2, "fast": 5.5}  # times the baseline, on a processor
BASELINE = "torch as it comes"  # float32, one picture at a time, torch's own memory order
PRODUCT = 4096  # rows of the square matrices whose product is the machine's peak
NEW_SIZES = 8
SIZES = (384, 512, 640, 768, 1024)
Picture = NDArray[np.uint8]


def speed(recipe: Recipe, engines: dict[str, Engine], sample: list[Picture], rounds: int) -> Iterator[Measure]:
    """Every engine against torch's defaults, in one run, and what else is asked of it."""
    picture = _fitted(sample[0])
    yield from _against(recipe, engines, picture, rounds)
    for name, engine in engines.items():
        yield _memory(name)
        if name != "torch":
            yield from _sizes(name, engine, recipe, sample[0])
            yield _new_size(name, engine, recipe, picture)
            yield _crow_share(name, engine, recipe, picture, rounds)


def _against(recipe: Recipe, engines: dict[str, Engine], picture: Picture, rounds: int) -> Iterator[Measure]:
    """Milliseconds a picture, the ratio to the baseline, and how near to the machine's own matrix product."""
    body = load(recipe.view.network, recipe.view.layer)[0]
    ways: dict[str, Callable[[Any], Any]] = {name: _ways(engine, recipe) for name, engine in engines.items()}
    products = {f"matrix product, {kind}": kind for kind in ("float32", "bfloat16")}
    ways |= {BASELINE: lambda one: _baseline(body, one, recipe)}
    ways |= {name: _product(kind) for name, kind in products.items()}
    times = timed(ways, [picture] * rounds, block=3)
    work = operations(body, HEIGHT, WIDTH)
    peaks = {name: 2e-6 * PRODUCT**3 / median(times[name]) for name in products}
    for name, peak in peaks.items():
        yield Measure(name, peak, "GFLOP/s")
    yield Measure(BASELINE, median(times[BASELINE]), "ms", spread(times[BASELINE]))
    for name, engine in engines.items():
        pair = {name: times[name], BASELINE: times[BASELINE]}
        wanted = WANTED[engine.precision] if engine.device == "cpu" and name != "torch" else None
        yield against(f"one picture of {WIDTH} x {HEIGHT}, {engine.precision}", pair, wanted)
    for name in (*engines, BASELINE):
        rate = 1e-6 * work / median(times[name])
        yield Measure(f"{name}: arithmetic", rate, "GFLOP/s")
        yield Measure(f"{name}: of the largest matrix product", 100 * rate / max(peaks.values()), "%")


def _ways(engine: Engine, recipe: Recipe) -> Callable[[Any], Any]:
    return lambda one: engine.vectors([one], recipe)


def _baseline(body: torch.nn.Module, picture: Picture, recipe: Recipe) -> Any:
    """One picture through torch's defaults, as cnnimageretrieval-pytorch and its kin run it."""
    x = torch.from_numpy(np.ascontiguousarray(picture.transpose(2, 0, 1)))[None].float()
    with torch.no_grad():
        return describe(body(x), recipe).numpy()


def _product(kind: str) -> Callable[[Any], Any]:
    """A plain square matrix product in torch."""
    matrix = torch.rand(PRODUCT, PRODUCT).to(getattr(torch, kind))
    return lambda _: matrix @ matrix


def _new_size(name: str, engine: Engine, recipe: Recipe, picture: Picture) -> Measure:
    """How much longer the first picture of a size takes than the second, the median over some sizes."""
    random = np.random.default_rng(0)
    ratios = []
    for _ in range(NEW_SIZES):
        height, width = HEIGHT - int(random.integers(1, 99)), WIDTH - int(random.integers(1, 99))
        part = picture[:height, :width]
        first, *later = (milliseconds(_ways(engine, recipe), part) for _ in range(4))
        ratios.append(first / median(later))
    value = median(ratios)
    return Measure(
        f"{name}: a new size over a seen one", value, "times", spread(ratios), wanted="at most 1.3", holds=value <= 1.3
    )


def _sizes(name: str, engine: Engine, recipe: Recipe, picture: Picture) -> Iterator[Measure]:
    """Seconds for a photograph of 4 : 3 at each everyday size."""
    for longest in SIZES:
        fitted = _fitted(picture, longest, longest * 3 // 4)
        times = timed({name: _ways(engine, recipe)}, [fitted] * 4)[name]
        yield Measure(f"{name}: longest side {longest}", median(times) / 1000, "s", spread(times) / 1000)


def _crow_share(name: str, engine: Engine, recipe: Recipe, picture: Picture, rounds: int) -> Measure:
    """Steps 1 to 5 of the algorithm, of the way from picture to vector."""
    x = next(iter(engine.maps([picture])))
    times = timed({"steps": lambda _: describe(x, recipe), "whole": _ways(engine, recipe)}, [picture] * rounds, block=1)
    value = 100 * median(times["steps"]) / median(times["whole"])
    return Measure(f"{name}: CroW itself, of the whole", value, "%", wanted="under 3", holds=value < 3)


def _memory(name: str) -> Measure:
    """The most memory that a process of its own held for eight pictures."""
    program = (
        "import resource, sys, numpy as np; from crow.extract.engines import engine_named; from crow.recipe import RECIPES;"
        "from crow.extract.networks import load; engine = engine_named(sys.argv[1], load('vgg16', 'conv5_3')[0]);"
        f"engine.vectors([np.zeros(({HEIGHT}, {WIDTH}, 3), np.uint8)] * 8, RECIPES['crow']);"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)"
    )
    done = subprocess.run([sys.executable, "-c", program, name], capture_output=True, text=True, check=True)
    return Measure(f"{name}: largest memory of a process", float(done.stdout), "MiB")


def _fitted(picture: Picture, width: int = WIDTH, height: int = HEIGHT) -> Picture:
    """A picture repeated and cut to a size."""
    tiles = np.tile(picture, (-(-height // picture.shape[0]), -(-width // picture.shape[1]), 1))
    return np.ascontiguousarray(tiles[:height, :width])
