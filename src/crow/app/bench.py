"""Bench: measurements, each against the best of its rivals in the same run, as plain records.

A measurement is a function that yields `Measure`s; whoever prints them takes the words from them. Rivals take turns,
a block of inputs each, so that whatever else the machine does falls on all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from math import prod
from statistics import median, quantiles
from time import perf_counter, sleep
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


SETTLE = 0.1  # seconds after which the threads of the rival before no longer spin, waiting for more work


@dataclass(frozen=True)
class Measure:
    """One figure with what it is compared to; `holds` where a requirement is set for it."""

    name: str
    value: float
    unit: str = ""
    spread: float | None = None  # between the quartiles, in the same unit
    ratio: float | None = None  # how many times better than the best rival
    rivals: dict[str, float] = field(default_factory=dict)
    wanted: str = ""  # the requirement in words
    holds: bool | None = None


SUBJECTS: dict[str, str] = {  # name -> room:function, which yields the measures of that subject
    "network": "crow.app.bench_network:network",
    "pipeline": "crow.app.bench_pipeline:pipeline",
    "decode": "crow.app.bench_pipeline:decode",
    "search": "crow.app.bench_search:search",
    "matches": "crow.app.bench_matches:matches",
    "sync": "crow.app.bench_sync:sync",
}


def measures(subject: str, **options: Any) -> Iterator[Measure]:
    """All measures of one of SUBJECTS, each as soon as it is there."""
    if subject not in SUBJECTS:
        raise ValueError(f"nothing to measure is named {subject!r}; there are: {', '.join(SUBJECTS)}")
    room, _, name = SUBJECTS[subject].partition(":")
    function: Callable[..., Iterable[Measure]] = getattr(import_module(room), name)
    yield from function(**options)


def timed(rivals: dict[str, Callable[[Any], Any]], inputs: Any, block: int = 20) -> dict[str, list[float]]:
    """Milliseconds of every rival on every input, a block at a time by turns."""
    times: dict[str, list[float]] = {name: [] for name in rivals}
    for begin in range(0, len(inputs), block):
        for name, answer in rivals.items():
            sleep(SETTLE)
            answer(inputs[begin])  # wakes its threads and loads its code
            times[name] += [milliseconds(answer, one) for one in inputs[begin : begin + block]]
    return times


def milliseconds(answer: Callable[[Any], Any], one: Any) -> float:
    """How long one answer takes."""
    start = perf_counter()
    answer(one)
    return 1000 * (perf_counter() - start)


def against(name: str, times: dict[str, list[float]], wanted: float | None = None) -> Measure:
    """The first of the rivals by its median, and how many times faster it is than the best of the others."""
    (ours, mine), *others = times.items()
    rivals = {name: median(values) for name, values in others}
    ratio = min(rivals.values()) / median(mine)
    words, holds = (f"{wanted:g} times the best rival", ratio >= wanted) if wanted else ("", None)
    return Measure(f"{name}: {ours}", median(mine), "ms", spread(mine), ratio, rivals, words, holds)


def spread(values: Sequence[float]) -> float:
    """Between the quartiles."""
    low, _, high = quantiles(values, n=4)
    return high - low


def operations(body: torch.nn.Module, height: int, width: int) -> float:
    """Multiplications and additions of all convolutions for one picture of a size."""
    import torch

    done: list[float] = []

    def count(layer: torch.nn.Module, _: Any, y: torch.Tensor) -> None:
        done.append(2.0 * y.numel() * prod(next(iter(layer.parameters())).shape[1:]))

    hooks = [layer.register_forward_hook(count) for layer in body.modules() if isinstance(layer, torch.nn.Conv2d)]
    with torch.no_grad():
        body(torch.zeros(1, 3, height, width, dtype=torch.uint8))
    for hook in hooks:
        hook.remove()
    return sum(done)
