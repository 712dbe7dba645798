"""Every picture ranked for every query, exactly and in full; and each ranking judged."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crow.evaluate.datasets import Query
from crow.evaluate.protocols import Order, average_precision, full_sort, judge, ranks_of
from crow.search.expand import expand as expanded

Vectors = NDArray[np.floating[Any]]

BLOCK = 64  # queries at a time: 51 MB of scores among 100,000 pictures
CHUNK = 8192  # rows in float64 at a time
SHOWN = 10  # results per query kept to be looked at, as the paper's figures show


@dataclass(frozen=True)
class Answer:
    """One query in one setting of its protocol."""

    query: str
    setting: str
    ap: float | None  # None where nothing is right: the query does not count in this setting
    ranks: Order  # (found,) of the right ones, junk dropped
    total: int  # of right ones, also those that have no picture
    shown: tuple[tuple[str, str], ...]  # the first results: (name, "right" / "wrong" / "junk")


def rankings(
    images: Vectors,
    queries: Vectors,
    left_out: Sequence[Collection[int]],
    expand: int = 0,
    with_query: bool = False,
) -> Iterator[Order]:
    """(n, d), (m, d) -> m orders (n,), best first, ties by index.

    With `expand`, each query is searched again as the sum of its first results, itself added only `with_query` (the
    paper does not, its released code does). What is left out for a query takes no part in its expansion.
    """
    for start in range(0, len(queries), BLOCK):
        block = queries[start : start + BLOCK].astype(np.float64)
        orders = full_sort(scores(images, block))
        if expand:
            outs = left_out[start : start + BLOCK]
            firsts = [order[~np.isin(order, list(out))][:expand] for order, out in zip(orders, outs, strict=True)]
            kind = "sum-with-query" if with_query else "sum"
            better = [expanded(query, images[first], kind) for query, first in zip(block, firsts, strict=True)]
            orders = full_sort(scores(images, np.stack(better)))
        yield from orders


def scores(images: Vectors, queries: Vectors) -> NDArray[np.float64]:
    """(n, d), (m, d) -> (m, n) cosines of unit rows in float64."""
    parts = [queries @ images[start : start + CHUNK].astype(np.float64).T for start in range(0, len(images), CHUNK)]
    return np.concatenate(parts, axis=1)


def judged(
    protocol: str, query: Query, order: Order, names: Sequence[str], places: Mapping[str, int]
) -> Iterator[Answer]:
    """How right one ranking is, in each setting of the protocol; `order` holds places in `names`."""
    for setting, truth in judge(protocol, query.labels).items():
        right = [places[name] for name in truth.right if name in places]
        junk = [places[name] for name in truth.junk if name in places]
        ranks, total = ranks_of(order, right, junk), len(truth.right)
        ap = average_precision(ranks, total) if total else None
        first = [names[i] for i in order[: SHOWN + 1] if query.name != names[i] or query.name in truth.right][:SHOWN]
        shown = [(n, "right" if n in truth.right else "junk" if n in truth.junk else "wrong") for n in first]
        yield Answer(query.name, setting, ap, ranks, total, tuple(shown))
