"""What `crow bench network` measures: pictures to vectors on every engine, against torch as it comes."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from crow.app.bench import Measure, against, milliseconds, spread, timed
from crow.app.bench_pipeline import some
from crow.extract.engines import ENGINES, Engine, EngineError, engine_named
from crow.extract.images import prepare
from crow.extract.networks import load
from crow.framework.describe import describe
from crow.recipe import RECIPES, Recipe

WIDTH, HEIGHT = 640, 480
WANTED = {"exact": 3.2, "fast": 5.5}  # times the baseline, on a processor
COSINE = {"exact": 0.9995, "fast": 0.995}
BASELINE = "torch as it comes"  # float32, one picture at a time, torch's own memory order
PRODUCT = 4096  # rows of the square matrices whose product is the machine's peak
NEW_SIZES = 8
SIZES = (384, 512, 640, 768, 1024)
Picture = NDArray[np.uint8]


def network(
    pictures: Path | None = None, rounds: int = 7, count: int = 20, device: str | None = None
) -> Iterator[Measure]:
    """Every engine that runs here against the baseline, with the vectors' cosine where photographs are given."""
    recipe = RECIPES["crow"]
    sample = [prepare(path, recipe.view).pixels for path in some(pictures, count)] if pictures else []
    engines = dict(_engines(recipe, device))
    picture = _fitted(sample[0] if sample else _noise())
    yield from _speed(recipe, engines, picture, rounds)
    for name, engine in engines.items():
        yield _memory(name)
        if name != "torch":
            yield from _sizes(name, engine, recipe)
            yield _new_size(name, engine, recipe)
            yield _crow_share(name, engine, recipe, picture, rounds)
    if sample:
        yield from _cosines(recipe, engines, sample)


def _engines(recipe: Recipe, device: str | None) -> Iterator[tuple[str, Engine]]:
    """The engines that run on this machine, the reference last."""
    for name in sorted(ENGINES, key=lambda name: name == "torch"):
        try:
            yield name, engine_named(name, load(recipe.view.network, recipe.view.layer)[0], device)
        except EngineError:
            continue


def _speed(recipe: Recipe, engines: dict[str, Engine], picture: Picture, rounds: int) -> Iterator[Measure]:
    """Milliseconds a picture, the ratio to the baseline, and how near to the machine's own matrix product."""
    body = load(recipe.view.network, recipe.view.layer)[0]
    ways: dict[str, Callable[[Any], Any]] = {name: _ways(engine, recipe) for name, engine in engines.items()}
    products = {f"matrix product, {kind}": kind for kind in ("float32", "bfloat16")}
    ways |= {BASELINE: lambda one: _baseline(body, one, recipe)}
    ways |= {name: _product(kind) for name, kind in products.items()}
    times = timed(ways, [picture] * rounds, block=3)
    work = operations(body, picture)
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


def operations(body: torch.nn.Module, picture: Picture) -> float:
    """Multiplications and additions of all convolutions for one picture."""
    done: list[float] = []

    def count(layer: torch.nn.Module, _: Any, y: torch.Tensor) -> None:
        done.append(2.0 * y.numel() * float(np.prod(next(iter(layer.parameters())).shape[1:])))

    hooks = [layer.register_forward_hook(count) for layer in body.modules() if isinstance(layer, torch.nn.Conv2d)]
    with torch.no_grad():
        body(torch.from_numpy(picture.copy()).permute(2, 0, 1)[None].contiguous())
    for hook in hooks:
        hook.remove()
    return sum(done)


def _new_size(name: str, engine: Engine, recipe: Recipe) -> Measure:
    """How much longer the first picture of a size takes than the second, the median over some sizes."""
    random = np.random.default_rng(0)
    ratios = []
    for _ in range(NEW_SIZES):
        height, width = HEIGHT - int(random.integers(1, 99)), WIDTH - int(random.integers(1, 99))
        picture = _noise()[:height, :width]
        first, *later = (milliseconds(_ways(engine, recipe), picture) for _ in range(4))
        ratios.append(first / median(later))
    value = median(ratios)
    return Measure(
        f"{name}: a new size over a seen one", value, "times", spread(ratios), wanted="at most 1.3", holds=value <= 1.3
    )


def _sizes(name: str, engine: Engine, recipe: Recipe) -> Iterator[Measure]:
    """Seconds for a photograph of 4 : 3 at each everyday size."""
    for longest in SIZES:
        picture = np.resize(_noise(), (longest * 3 // 4, longest, 3))
        times = timed({name: _ways(engine, recipe)}, [picture] * 4)[name]
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


def _cosines(recipe: Recipe, engines: dict[str, Engine], sample: list[Picture]) -> Iterator[Measure]:
    """The least cosine between an engine's vectors and the reference's."""
    reference = engines["torch"].vectors(sample, recipe)
    for name, engine in engines.items():
        if name != "torch":
            value = float((engine.vectors(sample, recipe) * reference).sum(1).min())
            least = COSINE[engine.precision]
            text = f"{name}: least cosine to the reference, {len(sample)} photographs"
            yield Measure(text, value, wanted=f"at least {least}", holds=value >= least)


def _fitted(picture: Picture) -> Picture:
    """A picture repeated and cut to the size that is measured."""
    height, width = picture.shape[:2]
    tiles = np.tile(picture, (-(-HEIGHT // height), -(-WIDTH // width), 1))
    return np.ascontiguousarray(tiles[:HEIGHT, :WIDTH])


def _noise() -> Picture:
    """A picture of no content, where no photographs are given: only times may be read off it."""
    return np.random.default_rng(0).integers(0, 256, (HEIGHT, WIDTH, 3), np.uint8)
