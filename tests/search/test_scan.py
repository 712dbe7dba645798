"""Scanning a piece, in sixteen and in eight bits, against plain products in float64."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_nearest import check, full_sort, matrix_of

from crow.search.nearest import Searcher, unit_query
from crow.search.scan import Piece, Rounded, scan, scan_rounded


def unit_rows(rng: np.random.Generator, n: int, dim: int) -> np.ndarray:
    rows = rng.standard_normal((n, dim)) * rng.uniform(0.01, 1, dim)
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float16)


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_no_row_outside_the_candidates_exceeds_the_bound(data):
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    n, dim = data.draw(st.integers(1, 200)), data.draw(st.sampled_from([1, 3, 16, 33, 256]))
    rows = unit_rows(rng, n, dim)
    rows[rng.random(n) < 0.1] = 0
    picked = None if data.draw(st.booleans()) else rng.random(n) < 0.5
    piece = Piece(rows, np.arange(n) * 2, picked)
    query, k = unit_query(rng.standard_normal(dim), dim), data.draw(st.integers(1, 40))
    true = np.array([sum(float(a) * float(b) for a, b in zip(row, query, strict=True)) for row in rows])
    for found, ids, bound in (scan(piece, query, k), scan_rounded(Rounded.of(piece), query, k)):
        counted = np.arange(n) if picked is None else np.flatnonzero(picked)
        outside = np.setdiff1d(counted, ids // 2)
        assert set(ids // 2) <= set(counted) and len(ids) == min(k, len(counted))
        assert np.array_equal(found, rows[ids // 2])
        assert (true[outside] <= bound).all()


def searcher(monkeypatch: pytest.MonkeyPatch, rows: np.ndarray, **how: object) -> Searcher:
    """One that has its rows in eight bits too."""
    monkeypatch.setattr("crow.search.nearest.SMALL", 2)
    made = Searcher(matrix_of(rows, **how), threads=2)
    made.search(rows[0])
    assert made._quick is not None
    made._quick.result()
    return made


def test_answers_from_eight_bits_are_those_of_a_full_sort(monkeypatch):
    rng = np.random.default_rng(5)
    rows = unit_rows(rng, 3000, 64)
    made = searcher(monkeypatch, rows, dead=rng.integers(0, 3000, 200), cut=(700, 1900))
    for query in rng.standard_normal((20, 64)):
        check(made.search(query, 10), full_sort(made.matrix, query, 10))
    assert made._trust > 8


def test_rows_too_close_together_are_told_apart_by_more_bits_and_eight_given_up(monkeypatch):
    rng = np.random.default_rng(6)
    rows = 1 + 0.001 * rng.standard_normal((3000, 64))
    made = searcher(monkeypatch, rows / np.linalg.norm(rows, axis=1, keepdims=True))
    for query in rng.standard_normal((6, 64)):
        check(made.search(query, 10), full_sort(made.matrix, query, 10))
    assert made._trust <= 0
