"""Query expansion against the sums written out."""

from __future__ import annotations

import math

import numpy as np
import pytest

from crow.search.expand import EXPANSIONS, expand
from crow.search.matrix import SearchError


def units(count: int, dim: int = 5):
    rows = np.random.default_rng(3).standard_normal((count, dim))
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


def by_hand(query, found, kind, alpha):
    """One number at a time."""
    total = [0.0 if kind == "sum" else float(x) for x in query]
    for row in found:
        cosine = math.fsum(float(a) * float(b) for a, b in zip(row, query, strict=True))
        weight = max(cosine, 0.0) ** alpha if kind == "alpha" else 1.0
        total = [t + weight * float(x) for t, x in zip(total, row, strict=True)]
    length = math.sqrt(math.fsum(t * t for t in total))
    return [t / length for t in total]


@pytest.mark.parametrize("kind", EXPANSIONS)
@pytest.mark.parametrize("alpha", [0.0, 1.0, 3.0])
def test_expansion_is_the_sum_written_out_and_changes_nothing(kind, alpha):
    query, found = units(1)[0], units(8)[1:]
    before = query.copy(), found.copy()
    query.flags.writeable = found.flags.writeable = False
    assert np.allclose(expand(query, found, kind, alpha), by_hand(query, found, kind, alpha), atol=1e-6)
    assert np.array_equal(query, before[0]) and np.array_equal(found, before[1])


@pytest.mark.parametrize("kind", EXPANSIONS)
def test_nothing_found_or_all_cancelled_leaves_the_query(kind):
    query = units(1)[0]
    assert np.allclose(expand(query, np.zeros((0, 5), np.float32), kind), query)
    cancelling = np.stack([-query] if kind != "sum" else [query, -query])
    expanded = expand(query, cancelling, kind)
    assert np.allclose(expanded, query) and expanded is not query


def test_an_unknown_expansion_lists_the_known_ones():
    with pytest.raises(SearchError, match="there are: sum, sum-with-query, alpha"):
        expand(units(1)[0], units(2), "more")
