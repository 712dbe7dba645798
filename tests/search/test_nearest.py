"""The searcher against a full sort in float64."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crow.search import nearest as room
from crow.search.matrix import Matrix, SearchError, Segment
from crow.search.nearest import Searcher


def matrix_of(rows, dead=(), cut=(), ids=None) -> Matrix:
    """A matrix in memory, in segments cut at the given rows."""
    ids = np.arange(1, len(rows) + 1) * 3 if ids is None else ids
    gone = np.isin(np.arange(len(rows)), list(dead))
    parts = np.split(np.arange(len(rows)), sorted(cut))
    segments = tuple(Segment("", rows[p].astype(np.float16), ids[p], gone[p]) for p in parts if len(p))
    return Matrix("k", 1, rows.shape[1], segments)


def full_sort(matrix: Matrix, query, k, allowed=None):
    """Everything in float64, every product by itself, then sorted with ties by id."""
    ids = matrix.ids if allowed is None else np.intersect1d(matrix.ids, allowed)
    query = np.asarray(query, np.float64)
    query = (query / np.sqrt((query**2).sum())).astype(np.float32).astype(np.float64)
    scores = [float(sum(a * b for a, b in zip(row, query, strict=True))) for row in matrix.vectors(ids).astype(float)]
    order = sorted(range(len(ids)), key=lambda i: (-round(scores[i], 12), ids[i]))[:k]
    return ids[order], np.array([scores[i] for i in order])


def check(found, expected):
    assert found.ids.tolist() == expected[0].tolist()
    assert np.allclose(found.scores, expected[1], atol=1e-12)


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_search_is_a_full_sort(data):
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    n, dim = data.draw(st.integers(0, 120)), data.draw(st.sampled_from([1, 3, 8, 33]))
    rows = rng.standard_normal((n, dim))
    if data.draw(st.booleans()):
        rows = rows[rng.integers(0, max(1, n // 20), n)] if n else rows  # many equal rows
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    dead = np.flatnonzero(rng.random(n) < data.draw(st.sampled_from([0, 0.1, 0.9])))
    cut = rng.integers(0, n + 1, data.draw(st.integers(0, 3)))
    matrix = matrix_of(rows, dead, cut)
    query = rows[0] if n and data.draw(st.booleans()) else rng.standard_normal(dim)
    k = data.draw(st.integers(1, 150))
    share = data.draw(st.sampled_from([None, 0, 0.02, 0.3, 1]))
    allowed = None if share is None else rng.permutation(400)[: int(share * 400)]
    old = room.SMALL, room.SPARE
    room.SMALL, room.SPARE = data.draw(st.sampled_from([2, 1 << 14])), data.draw(st.sampled_from([0, 22]))
    try:
        check(Searcher(matrix, threads=2).search(query, k, allowed), full_sort(matrix, query, k, allowed))
    finally:
        room.SMALL, room.SPARE = old


@pytest.fixture(scope="module")
def large():
    rng = np.random.default_rng(5)
    rows = rng.standard_normal((40_000, 16))
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    return matrix_of(rows, dead=range(100, 200), cut=(9_000, 33_000)), rng


@pytest.mark.parametrize("share", [0.001, 0.01, 0.1, 0.5])
def test_a_filter_gives_what_exact_search_with_the_filter_gives(large, share):
    matrix, rng = large
    searcher = Searcher(matrix, threads=2)
    scores_of = {int(i): row for i, row in zip(matrix.ids, matrix.vectors(matrix.ids).astype(float), strict=True)}
    for _ in range(5):
        query = rng.standard_normal(16)
        unit = (query / np.linalg.norm(query)).astype(np.float32).astype(float)
        allowed = rng.permutation(matrix.ids)[: int(share * len(matrix))]
        found = searcher.search(query, 10, allowed)
        expected = sorted((-(scores_of[int(i)] @ unit), int(i)) for i in allowed)[:10]
        assert found.ids.tolist() == [i for _, i in expected]


def test_more_ties_than_candidates_still_go_by_id(large):
    _, rng = large
    row = rng.standard_normal(8)
    rows = np.tile(row / np.linalg.norm(row), (50_000, 1))
    ids = np.arange(50_000)
    found = Searcher(matrix_of(rows, ids=ids, cut=(20_000,)), threads=2).search(row, 40)
    assert found.ids.tolist() == list(range(40))


@pytest.mark.parametrize(
    ("query", "reason"),
    [
        (np.zeros(16), "zero"),
        (np.full(16, np.nan), "NaN"),
        ([np.inf, *range(15)], "NaN or infinity"),
        (np.ones(15), "16 numbers"),
        (np.ones((1, 16)), "16 numbers"),
    ],
)
def test_a_query_that_means_nothing_is_refused(large, query, reason):
    with pytest.raises(SearchError, match=reason):
        Searcher(large[0]).search(query)
    with pytest.raises(SearchError, match="at least 1"):
        Searcher(large[0]).search(np.ones(16), 0)


def test_huge_and_tiny_queries_are_as_good_as_any(large):
    query = np.linspace(-1, 1, 16)
    searcher = Searcher(large[0])
    for factor in (1e300, 1e-300):
        assert searcher.search(query * factor).ids.tolist() == searcher.search(query).ids.tolist()


def test_an_empty_matrix_answers_with_nothing():
    assert len(Searcher(Matrix("k", 0, 4)).search(np.ones(4))) == 0
