"""Rankings among distractors that stream past: a million of them are never held, only counted above each picture."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crow.evaluate.protocols import SCORE_DECIMALS, Order, full_sort
from crow.evaluate.rank import Vectors, scores
from crow.framework.reduce import Whitening
from crow.recipe import Recipe
from crow.search.expand import expand as expanded
from crow.search.store import Store, StoreError

Reduce = Callable[[Vectors], Vectors]


@dataclass(frozen=True)
class Stream:
    """The vectors of an index as distractors; the index may hold more than memory does."""

    store: Store

    @cached_property
    def count(self) -> int:
        """How many."""
        return len(self.store)

    def chunks(self, recipe: Recipe, weights: str, reduce: Whitening | None) -> Iterator[Vectors]:
        """Their vectors, reduced as the dataset's are; refused where another recipe or network made them."""
        settings = self.store.settings()
        made = Recipe.from_dict(settings["recipe"])
        if made.key() != recipe.key():
            raise StoreError(f"{self.store.address}: made with another recipe ({'; '.join(made.differences(recipe))})")
        if settings.get("weights") not in (None, weights):
            raise StoreError(
                f"{self.store.address}: made with weights {settings['weights']}, the dataset with {weights}"
            )
        for _, raw in self.store.chunks():
            yield reduce(raw, recipe) if reduce else raw


def rankings_among(
    images: Vectors,
    queries: Vectors,
    left_out: Sequence[Collection[int]],
    stream: Callable[[], Iterable[Vectors]],
    expand: int = 0,
    with_query: bool = False,
) -> Iterator[Order]:
    """As `rankings`, among (N, d) more pictures in chunks: m orders (n + N,), where n stands for any of these."""
    asked = queries.astype(np.float64)
    own, above, first = counted(images, asked, stream, expand)
    if expand:
        kind = "sum-with-query" if with_query else "sum"
        tops = [best(images, own[i], left_out[i], first[i], expand) for i in range(len(asked))]
        better = np.stack([expanded(query, top, kind) for query, top in zip(asked, tops, strict=True)])
        own, above, _ = counted(images, better.astype(np.float64), stream, 0)
    for mine, more in zip(own, above, strict=True):
        order = full_sort(mine)
        yield np.insert(order, np.repeat(np.arange(len(order) + 1), _between(more, order)), len(images))


def counted(
    images: Vectors, queries: NDArray[np.float64], stream: Callable[[], Iterable[Vectors]], keep: int
) -> tuple[NDArray[np.float64], NDArray[np.int64], list[tuple[Any, Any]]]:
    """(m, n) scores of the pictures; (m, n + 1) how many of the stream score above each, and in all; its best `keep`."""
    own = np.round(scores(images, queries), SCORE_DECIMALS)
    above = np.zeros((len(queries), len(images) + 1), np.int64)
    first = [(np.empty(0), np.empty((0, queries.shape[1]))) for _ in queries]
    for chunk in stream():
        found = np.round(queries @ chunk.astype(np.float64).T, SCORE_DECIMALS)
        for i, line in enumerate(found):
            above[i, :-1] += len(line) - np.searchsorted(np.sort(line), own[i], "right")
            above[i, -1] += len(line)
            if keep:
                top = np.argsort(-line, kind="stable")[:keep]
                values, rows = np.r_[first[i][0], line[top]], np.vstack([first[i][1], chunk[top]])
                order = np.argsort(-values, kind="stable")[:keep]
                first[i] = values[order], rows[order]
    return own, above, first


def best(
    images: Vectors, own: NDArray[np.float64], out: Collection[int], first: tuple[Any, Any], count: int
) -> Vectors:
    """(count, d): the first results of one query among the pictures, without those left out, and the stream."""
    order = full_sort(own)
    order = order[~np.isin(order, list(out))][:count]
    values, rows = np.r_[own[order], first[0]], np.vstack([images[order], first[1]])
    top: Vectors = rows[np.argsort(-values, kind="stable")[:count]]
    return top


def _between(above: NDArray[np.int64], order: Order) -> NDArray[np.int64]:
    """(n + 1,) how many of the stream stand before the first picture of an order, between each two, and at the end."""
    return np.diff(np.r_[0, above[order], above[-1]])
