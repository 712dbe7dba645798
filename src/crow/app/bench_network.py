"""What `crow bench network` measures: pictures to vectors on every engine that runs here, against torch as it comes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from crow.app import bench_cpu, bench_gpu
from crow.app.bench import Measure
from crow.app.bench_pipeline import some
from crow.extract.engines import ENGINES, Engine, EngineError, engine_named
from crow.extract.images import prepare
from crow.extract.networks import load
from crow.recipe import RECIPES, Recipe

COSINE = {"exact": 0.9995, "fast": 0.995}
LARGE = 1024  # longest side of the photographs that cosines are read on, on a GPU
COMPARED = ("crow", "ucrow", "rmac")  # recipes whose vectors are compared to the reference's
Picture = NDArray[np.uint8]


def network(
    pictures: Path | None = None, rounds: int = 7, count: int = 20, device: str | None = None
) -> Iterator[Measure]:
    """Every engine that runs here against the baseline, with the vectors' cosine where photographs are given."""
    recipe = RECIPES["crow"]
    on_gpu = device != "cpu" and torch.cuda.is_available()
    recipe = recipe.sized(str(LARGE)) if on_gpu else recipe
    sample = [prepare(path, recipe.view).pixels for path in some(pictures, count)] if pictures else []
    engines = dict(_engines(recipe, device))
    speed = bench_gpu.speed if on_gpu else bench_cpu.speed
    yield from speed(recipe, engines, sample or [_noise()], rounds)
    if sample:
        yield from _cosines(engines, sample)


def _engines(recipe: Recipe, device: str | None) -> Iterator[tuple[str, Engine]]:
    """The engines that run on this machine, the reference last; on a GPU those that use it."""
    for name in sorted(ENGINES, key=lambda name: name == "torch"):
        try:
            engine = engine_named(name, load(recipe.view.network, recipe.view.layer)[0], device)
        except EngineError:
            continue
        if engine.device != "cpu" or device == "cpu" or not torch.cuda.is_available():
            yield name, engine


def _cosines(engines: dict[str, Engine], sample: list[Picture]) -> Iterator[Measure]:
    """The least cosine between an engine's vectors and the reference's, over some recipes."""
    for name in (name for name in engines if name != "torch"):
        engine, found = engines[name], []
        for recipe in (RECIPES[each] for each in COMPARED):
            found.append((engine.vectors(sample, recipe) * engines["torch"].vectors(sample, recipe)).sum(1).min())
        value, least = float(min(found)), COSINE[engine.precision]
        text = f"{name}: least cosine to the reference, {len(sample)} photographs, {', '.join(COMPARED)}"
        yield Measure(text, value, wanted=f"at least {least}", holds=value >= least)


def _noise() -> Picture:
    """A picture of no content, where no photographs are given: only times may be read off it."""
    return np.random.default_rng(0).integers(0, 256, (480, 640, 3), np.uint8)
