from __future__ import annotations

import math
import operator

import numpy as np

from crow.evaluate.datasets import Query
from crow.evaluate.rank import judged, rankings, scores


def unit(rows):
    return rows / np.linalg.norm(rows, axis=-1, keepdims=True)


def vectors(n, seed, d=16):
    return unit(np.random.default_rng(seed).normal(size=(n, d))).astype(np.float32)


def test_rankings_are_a_full_sort_in_chunks_and_blocks():
    images, queries = vectors(9000, 0), vectors(70, 1)
    found = list(rankings(images, queries, [[]] * 70))
    assert len(found) == 70
    for i in (0, 63, 64, 69):
        cosines = [round(math.fsum(map(operator.mul, row, queries[i].tolist())), 10) for row in images.tolist()]
        assert found[i].tolist() == sorted(range(9000), key=lambda j, c=cosines: (-c[j], j))


def test_copies_tie_and_stand_by_index():
    images = vectors(40, 2, 512)
    images = np.concatenate([images, images, images[:7]])
    order = next(iter(rankings(images, images[3:4], [[]])))
    assert order[:3].tolist() == [3, 43, 83]


def test_expansion_sums_the_first_results_and_searches_again():
    images, queries = vectors(30, 3), vectors(2, 4)
    before = queries.copy()
    for with_query in (False, True):
        found = list(rankings(images, queries, [[], []], expand=3, with_query=with_query))
        for i, query in enumerate(queries):
            top = sorted(range(30), key=lambda j, q=query: -float(np.dot(images[j].astype(float), q)))[:3]
            total = sum(images[j].astype(float) for j in top) + (query if with_query else 0)
            np.testing.assert_array_equal(found[i], np.argsort(-(images.astype(float) @ total), kind="stable"))
    np.testing.assert_array_equal(queries, before)


def test_what_is_left_out_takes_no_part_in_the_expansion():
    images = vectors(20, 5)
    alone = next(iter(rankings(images, images[:1], [[0]], expand=1)))
    nearest = np.argsort(-(images.astype(float) @ images[0]))[1]
    assert alone[0] == nearest


def test_scores_are_cosines():
    images, queries = vectors(10, 6), vectors(3, 7)
    np.testing.assert_allclose(scores(images, queries), queries.astype(float) @ images.astype(float).T)


def test_judged_shows_right_wrong_and_junk_but_not_the_query_itself(tmp_path):
    names = ["a", "b", "c", "d"]
    query = Query("a", tmp_path, None, {"group": frozenset("ab"), "self": frozenset("a")})
    (answer,) = judged("groups", query, np.array([0, 2, 1, 3]), names, {n: i for i, n in enumerate(names)})
    assert answer.ranks.tolist() == [1] and answer.total == 1
    assert answer.shown == (("c", "wrong"), ("b", "right"), ("d", "wrong"))
    junk = Query("q", tmp_path, None, {"good": frozenset("a"), "ok": frozenset(), "junk": frozenset("c")})
    (answer,) = judged("oxford", junk, np.array([2, 0, 1, 3]), names, {n: i for i, n in enumerate(names)})
    assert answer.ap == 1 and answer.shown[0] == ("c", "junk")
