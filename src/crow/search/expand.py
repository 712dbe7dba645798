"""Query expansion: a better query from what the first one found. The search is then run again with it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from crow.search.matrix import SearchError
from crow.search.store import Vectors

ALPHA = 3.0  # the power published with GeM and alpha-weighted expansion


def by_sum(query: Vectors, found: Vectors, alpha: float = ALPHA) -> Vectors:
    """(d,), (M, d) -> (d,): the sum of the top M, as the paper has it."""
    return _unit(found.sum(0, dtype=np.float64), query)


def by_sum_with_query(query: Vectors, found: Vectors, alpha: float = ALPHA) -> Vectors:
    """(d,), (M, d) -> (d,): the query and the top M, as the released code has it."""
    return _unit(query + found.sum(0, dtype=np.float64), query)


def by_similarity(query: Vectors, found: Vectors, alpha: float = ALPHA) -> Vectors:
    """(d,), (M, d) -> (d,): the query and the top M, each weighted by its cosine ** alpha; none below zero counts."""
    weights = np.maximum(found.astype(np.float64) @ query, 0) ** alpha
    return _unit(query + weights @ found, query)


EXPANSIONS: dict[str, Callable[[Vectors, Vectors, float], Vectors]] = {
    "sum": by_sum,
    "sum-with-query": by_sum_with_query,
    "alpha": by_similarity,
}


def expand(query: Vectors, found: Vectors, kind: str = "sum", alpha: float = ALPHA) -> Vectors:
    """(d,), (M, d) -> (d,): the expanded query, of length 1; the query itself where nothing was found."""
    if kind not in EXPANSIONS:
        raise SearchError(f"no query expansion named {kind!r}; there are: {', '.join(EXPANSIONS)}")
    return EXPANSIONS[kind](query, found, alpha)


def _unit(total: NDArray[np.float64], query: Vectors) -> Vectors:
    """(d,) -> (d,) of length 1; where the vectors cancel out, the query as it was."""
    length = np.linalg.norm(total)
    return (total / length if length > 0 else np.array(query)).astype(np.float32)
