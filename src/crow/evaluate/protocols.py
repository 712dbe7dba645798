"""What counts as right, and how right a ranking is: every protocol's average precision, and how sure one can be of it.

Pure functions. A ranking is an order of the indexed pictures, best first; ranks count from 0.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Order = NDArray[np.integer[Any]]
Labels = Mapping[str, Collection[str]]  # "good" -> names, "junk" -> names, ...

DRAWS = 10_000  # of a bootstrap or a permutation: the 95 % bounds then move by less than a tenth of their width
SEED = 0
SCORE_DECIMALS = 10  # copies of one picture tie, in whatever order a machine adds their products up


class ProtocolError(ValueError):
    """A protocol that does not exist."""


@dataclass(frozen=True)
class Judged:
    """The names that are right for one query, and those passed over as if they were not there."""

    right: frozenset[str]
    junk: frozenset[str]


def oxford(labels: Labels) -> dict[str, Judged]:
    """Oxford and Paris: good and ok are right, junk is passed over; the query's own picture counts."""
    return {"": Judged(frozenset(labels["good"]) | frozenset(labels["ok"]), frozenset(labels["junk"]))}


def holidays(labels: Labels) -> dict[str, Judged]:
    """Holidays and groups: the rest of the group is right, the query itself is passed over."""
    return {"": Judged(frozenset(labels["group"]) - frozenset(labels["self"]), frozenset(labels["self"]))}


def revisited(labels: Labels) -> dict[str, Judged]:
    """Revisited Oxford and Paris: what is no positive of a setting, but shows the thing, is junk in it."""
    easy, hard, junk = (frozenset(labels[name]) for name in ("easy", "hard", "junk"))
    return {"easy": Judged(easy, junk | hard), "medium": Judged(easy | hard, junk), "hard": Judged(hard, junk | easy)}


PROTOCOLS: dict[str, Callable[[Labels], dict[str, Judged]]] = {
    "oxford": oxford,
    "holidays": holidays,
    "groups": holidays,
    "revisited": revisited,
}


def judge(protocol: str, labels: Labels) -> dict[str, Judged]:
    """What is right for a query in each setting of its protocol (one setting, called "", for most)."""
    if protocol not in PROTOCOLS:
        raise ProtocolError(f"no protocol named {protocol!r}; there are: {', '.join(PROTOCOLS)}")
    return PROTOCOLS[protocol](labels)


def full_sort(scores: NDArray[np.floating[Any]]) -> Order:
    """(..., n) -> (..., n), every index by falling score, ties by index."""
    return np.argsort(-np.round(scores, SCORE_DECIMALS), axis=-1, kind="stable")


def ranks_of(order: Order, right: Collection[int], junk: Collection[int] = ()) -> Order:
    """(n,) -> (found,), the ranks of the right ones after the junk is dropped, rising."""
    kept = order[~np.isin(order, list(junk))]
    return np.flatnonzero(np.isin(kept, list(right)))


def average_precision(ranks: Order, total: int) -> float:
    """(found,) -> a number: trapezoids under precision by recall, from precision 1; `total` counts missing ones too."""
    found = np.arange(1, len(ranks) + 1)
    before = np.where(ranks == 0, 1.0, (found - 1) / np.maximum(ranks, 1))
    after = found / (ranks + 1)
    return float((before + after).sum() / (2 * total))


def precision_at(ranks: Order, k: int) -> float:
    """(found,) -> the share of right ones among the first k."""
    return float((ranks < k).sum() / k)


def precision_within(ranks: Order, k: int) -> float:
    """(found,) -> the revisited protocol's P@k, where k is cut to the rank of the last right one."""
    cut = min(k, int(ranks[-1]) + 1) if len(ranks) else k
    return precision_at(ranks, cut)


def recall_at(ranks: Order, total: int, k: int) -> float:
    """(found,) -> the share of all right ones that stand among the first k."""
    return float((ranks < k).sum() / total)


def curve(ranks: Order, total: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """(found,) -> recall (found + 1,) and precision (found + 1,), from recall 0 at precision 1."""
    found = np.arange(1, len(ranks) + 1)
    return np.r_[0.0, found / total], np.r_[1.0, found / (ranks + 1)]


def mean(values: Sequence[float | None]) -> float | None:
    """The mean of the queries that count (those with anything right); None where there is none."""
    counted = [value for value in values if value is not None]
    return float(np.mean(counted)) if counted else None


def interval(
    values: Sequence[float | None], share: float = 0.95, draws: int = DRAWS, seed: int = SEED
) -> tuple[float, float] | None:
    """Bootstrap bounds of the mean: where `share` of the means fall when the queries are drawn again."""
    counted = np.array([value for value in values if value is not None])
    if not len(counted):
        return None
    random = np.random.default_rng(seed)
    means = [counted[random.integers(len(counted), size=size)].mean(1) for size in _portions(draws, len(counted))]
    low, high = np.quantile(np.concatenate(means), [(1 - share) / 2, (1 + share) / 2])
    return float(low), float(high)


def _portions(draws: int, queries: int) -> list[tuple[int, int]]:
    """The shapes of all draws in portions of some 16 MB."""
    rows = max(1, (1 << 21) // queries)
    return [(min(rows, draws - start), queries) for start in range(0, draws, rows)]


@dataclass(frozen=True)
class Difference:
    """Two recipes on the same queries: the mean difference, its bounds, and how often chance alone does as much."""

    mean: float
    low: float
    high: float
    p: float
    queries: int


def compare(
    first: Sequence[float | None], second: Sequence[float | None], draws: int = DRAWS, seed: int = SEED
) -> Difference | None:
    """Paired test of first minus second: bounds by bootstrap, p (two-sided) by flipping the signs of the differences."""
    differences = np.array([a - b for a, b in zip(first, second, strict=True) if a is not None and b is not None])
    bounds = interval(list(differences), draws=draws, seed=seed)
    if bounds is None:
        return None
    random, observed, as_large = np.random.default_rng(seed), abs(differences.mean()), 0
    for size in _portions(draws, len(differences)):
        flipped = (random.choice([-1.0, 1.0], size=size) @ differences) / len(differences)  # nosec B311  # no secret
        as_large += int((np.abs(flipped) >= observed - 1e-12).sum())
    p = (as_large + 1) / (draws + 1)  # the observed signs are one of the flips
    return Difference(float(differences.mean()), *bounds, p, len(differences))
