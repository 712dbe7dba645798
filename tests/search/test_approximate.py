"""Approximate search: what it finds of the exact answer, what comes after the build, and that damage is noticed."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from crow.search import approximate as room
from crow.search.approximate import Approximate, Stopped, build
from crow.search.matrix import Matrix, SearchError, Segment
from crow.search.nearest import Searcher

DIM = 70  # no multiple of 64: padded before it is coded


def rows_of(count: int, seed: int):
    rng = np.random.default_rng(seed)
    rows = np.random.default_rng(0).standard_normal((50, DIM))[rng.integers(0, 50, count)]
    rows = rows + rng.standard_normal((count, DIM))
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def segment(count: int, first: int, seed: int) -> Segment:
    return Segment("", rows_of(count, seed).astype(np.float16), np.arange(first, first + count), np.zeros(count, bool))


@pytest.fixture(scope="module")
def matrix():
    return Matrix("k", 1, DIM, (segment(4000, 0, 1), segment(2000, 4000, 2)))


@pytest.fixture(scope="module", params=sorted(room.KINDS))
def made(request, matrix):
    return build(matrix, request.param)


def share_found(matrix, made, queries):
    """Recall@10 against a full sort in NumPy."""
    searcher, data = Searcher(matrix, proposals=made), matrix.vectors(matrix.ids).astype(float)
    shares = []
    for query in queries:
        truth = matrix.ids[np.argsort(-(data @ query))[:10]]
        shares.append(np.isin(truth, searcher.search(query, 10, approximate=True).ids).mean())
    return np.mean(shares)


def test_it_finds_what_it_says_it_finds(matrix, made):
    assert made.recall >= room.RECALL
    assert share_found(matrix, made, rows_of(200, 3)) >= made.recall - 0.03


def test_a_collection_far_from_the_origin_is_searched_as_well():
    rows = rows_of(5000, 8) + 0.8
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    matrix = Matrix("k", 1, DIM, (Segment("", rows.astype(np.float16), np.arange(5000), np.zeros(5000, bool)),))
    made = build(matrix)
    assert made.recall >= room.RECALL
    assert share_found(matrix, made, rows[:200]) >= made.recall - 0.03


@pytest.mark.parametrize(("dim", "different"), [(1, 2), (1, 1), (9, 1), (9, 2), (40, 3)])
@pytest.mark.parametrize("kind", sorted(room.KINDS))
def test_a_collection_of_hardly_any_different_rows_is_searched_too(kind, dim, different):
    some = np.random.default_rng(1).standard_normal((different, dim))
    some /= np.linalg.norm(some, axis=1, keepdims=True)
    rows = some[np.arange(5000) % different].astype(np.float16)
    matrix = Matrix("k", 1, dim, (Segment("", rows, np.arange(5000), np.zeros(5000, bool)),))
    found = Searcher(matrix, proposals=build(matrix, kind)).search(some[0], 10, approximate=True)
    assert len(found) == 10
    assert np.allclose(found.scores, 1, atol=2e-3)


@pytest.mark.parametrize("spread", [0, 0.002, 0.3])
def test_axes_hold_nearly_all_of_the_variance(spread):
    rng = np.random.default_rng(2)
    flat = rng.standard_normal((3000, 6)) @ rng.standard_normal((6, 50)) + 5
    rows = (flat + spread * rng.standard_normal((3000, 50))).astype(np.float32)
    singular = np.linalg.svd(rows.astype(float) - rows.astype(float).mean(0), compute_uv=False)
    left = [1 - (singular[:axes] ** 2).sum() / (singular**2).sum() for axes in range(51)]
    axes = room.axes_of(rows)
    assert left[axes] <= 0.01 < left[axes - 1]
    assert axes <= 6 or spread == 0.3


def test_the_caller_keeps_the_threads_that_it_gave_faiss(made):
    faiss = pytest.importorskip("faiss")
    before = faiss.omp_get_max_threads()
    try:
        faiss.omp_set_num_threads(3)
        made.candidates(rows_of(1, 9)[0].astype(np.float32), 10)
        assert faiss.omp_get_max_threads() == 3
    finally:
        faiss.omp_set_num_threads(before)


def test_scores_are_the_exact_ones(matrix, made):
    query = rows_of(1, 4)[0]
    found = Searcher(matrix, proposals=made).search(query, 10, approximate=True)
    unit = query.astype(np.float32).astype(float)
    assert np.allclose(found.scores, matrix.vectors(found.ids).astype(float) @ unit, atol=1e-7)
    assert (np.diff(found.scores) <= 0).all()


def test_rows_that_came_later_are_searched_and_dead_ones_are_not(matrix, made):
    late = segment(300, 10_000, 5)
    dead = replace(matrix.segments[0], dead=np.arange(4000) < 500)
    now = Matrix("k", 2, DIM, (dead, matrix.segments[1], late))
    searcher = Searcher(now, proposals=made)
    for i in (0, 150, 299):
        assert searcher.search(late.rows[i].astype(float), 1, approximate=True).ids[0] == 10_000 + i
    for i in range(5):
        assert searcher.search(matrix.segments[0].rows[i].astype(float), 10, approximate=True).ids.min() >= 500
    assert not made.is_stale(now)
    gone = replace(matrix.segments[0], dead=np.arange(4000) < 1300)
    assert made.is_stale(Matrix("k", 3, DIM, (gone, matrix.segments[1])))
    assert made.is_stale(Matrix("other", 1, DIM, matrix.segments))
    assert made.is_stale(Matrix("k", 1, DIM))


def test_a_filter_is_answered_exactly(matrix, made):
    searcher, query = Searcher(matrix, proposals=made), rows_of(1, 6)[0]
    allowed = np.arange(0, 6000, 7)
    both = [searcher.search(query, 10, allowed, approximate=approximate).ids.tolist() for approximate in (True, False)]
    assert both[0] == both[1]


def test_it_comes_back_from_disk_and_damage_is_noticed(matrix, made, tmp_path):
    made.save(tmp_path)
    made.save(tmp_path)
    assert len(list(tmp_path.iterdir())) == 3
    loaded = Approximate.load(tmp_path, "k")
    assert loaded and (loaded.effort, loaded.recall) == (made.effort, made.recall)
    for query in rows_of(20, 7):
        unit = query.astype(np.float32)
        assert loaded.candidates(unit, 10).tolist() == made.candidates(unit, 10).tolist()
    assert Approximate.load(tmp_path, "other") is None
    assert Approximate.load(tmp_path / "nowhere", "k") is None
    file = next(tmp_path.glob("*.faiss"))
    file.write_bytes(file.read_bytes()[:-100])
    assert Approximate.load(tmp_path, "k") is None
    file.unlink()
    assert Approximate.load(tmp_path, "k") is None


def test_a_build_that_is_stopped_says_so(matrix):
    with pytest.raises(Stopped):
        build(matrix, go_on=lambda: False)


def test_what_cannot_be_built_is_refused(matrix):
    with pytest.raises(SearchError, match="there are: ivf-pq, hnsw"):
        build(matrix, "tree")
    with pytest.raises(SearchError, match="from 4096 pictures on; here are 3"):
        build(Matrix("k", 1, DIM, (segment(3, 0, 1),)))
    with pytest.raises(SearchError, match="no approximate search"):
        Searcher(matrix).search(np.ones(DIM), approximate=True)
