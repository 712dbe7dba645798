"""Chance and line against worlds where the truth is known: drawn pairs, counted tails, searches without a match."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from crow.search.chance import FEWEST, GRID, RISK, SIGMA, Background, polish, tail_of
from crow.search.index import Index
from crow.search.matrix import Matrix, Segment
from crow.search.nearest import Searcher
from crow.search.store import Row


def world(seed: int, count: int, queries: int, dim: int, common: float, series: int = 0, noise: float = 0.3):
    """Unit rows with a common direction (cosines around its square), some of them in series, and queries without match."""
    rng = np.random.default_rng(seed)
    rows = rng.standard_normal((count + queries, dim)) / math.sqrt(dim)
    rows[:, 0] += common * rng.uniform(0.7, 1.3, len(rows))  # some pictures are like everything
    for first in range(0, series * 5, 5):  # series of five
        rows[first + 1 : first + 5] = rows[first] + noise * rng.standard_normal((4, dim)) / math.sqrt(dim)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    return rows[:count], rows[count:]


@pytest.mark.parametrize(("dim", "common"), [(24, 0.0), (64, 0.0), (128, 0.0), (512, 0.8), (64, 0.8)])
@pytest.mark.parametrize("series", [0, 20])
def test_at_most_one_query_in_twenty_gets_a_match_it_does_not_have(dim, common, series):
    rows, queries = world(dim, 300, 2000, dim, common, series)
    background = Background.from_scores(rows @ rows.T, 300)
    highest = (queries @ rows.T).max(1)
    assert np.mean(highest > background.line) <= 0.055
    related = [rows[i] @ rows[i + 1] for i in range(0, series * 5, 5)]
    assert all(score > background.line for score in related)


@pytest.mark.parametrize(("dim", "common"), [(32, 0.0), (128, 0.0), (512, 0.8)])
def test_the_chance_is_the_share_of_unrelated_pairs_that_score_as_high(dim, common):
    rows, queries = world(7, 400, 4000, dim, common, series=10)
    background, scores = Background.from_scores(rows @ rows.T, 400), queries @ rows.T
    for share in (0.3, 0.1, 0.01, 0.001):
        score = float(np.quantile(scores, 1 - share))
        assert share / 2 < background.chances(np.array([score]))[0] < share * 2


def test_chances_fall_with_the_score_and_the_line_rises_with_the_collection():
    rows, _ = world(3, 200, 0, 64, 0.5)
    scores = rows @ rows.T
    small, large = (Background.from_scores(scores, count) for count in (200, 1_000_000))
    assert (np.diff(small.chances(GRID)) <= 0).all()
    assert np.array_equal(small.chances(GRID), large.chances(GRID))
    assert small.line < large.line < 1
    assert small.chances(np.array([small.line]))[0] == pytest.approx(RISK / 200, rel=0.7)


def test_too_few_or_too_related_pictures_tell_nothing():
    few, _ = world(1, FEWEST - 1, 0, 64, 0.5)
    alike, _ = world(2, 60, 0, 64, 0.5, series=12)
    alike[:30] = alike[0] + 0.02 * alike[:30]  # one half is a single scene
    alike /= np.linalg.norm(alike, axis=1, keepdims=True)
    for rows in (few, alike, np.tile(few[:1], (40, 1)), np.empty((0, 64))):
        background = Background.from_scores(rows @ rows.T, len(rows))
        assert not background.known and np.isnan(background.chances(np.array([0.5, 1]))).all()
        assert math.isnan(background.line) and math.isnan(background.line_among(np.array([0.9, 0.5])))


def test_the_line_gives_way_behind_matches_as_benjamini_and_hochberg_say():
    rows, _ = world(3, 200, 0, 64, 0.5)
    background, rng = Background.from_scores(rows @ rows.T, 200), np.random.default_rng(1)
    for _ in range(200):
        scores = np.sort(rng.uniform(background.line - 0.2, 0.99, rng.integers(1, 30)))[::-1]
        adjusted = stats.false_discovery_control(background.chances(scores))  # times m / rank, made to rise
        bearable = len(scores) * background.chances(np.array([background.line]))[0]
        line = background.line_among(scores)
        assert (scores >= line).tolist() == (adjusted <= bearable).tolist() and line <= background.line
    assert background.line_among(np.array([1.0, 0.9999])) == background.line  # the query and its copy prove nothing
    low = background.line - 0.01
    assert background.line_among(np.array([1.0, low])) == background.line
    assert background.line_among(np.array([])) == background.line


def test_the_polish_finds_the_effects_that_scores_were_made_of():
    rng = np.random.default_rng(0)
    true, noise = rng.normal(0, 0.1, 101), rng.normal(0, 0.01, (101, 101))
    scores = 0.3 + true[:, None] + true + (noise + noise.T) / 2
    before = scores.copy()
    effects, residuals = polish(scores)
    assert np.abs(effects - effects.mean() - (true - true.mean())).max() < 0.01
    assert residuals.shape == (101, 100) and np.array_equal(scores, before)


@pytest.mark.parametrize("dim", [5, 24, 200])
def test_the_tail_is_that_of_random_directions(dim):
    law = stats.beta((dim - 1) / 2, (dim - 1) / 2, loc=-1, scale=2)  # of a cosine in that many dimensions
    tail = tail_of(float(law.ppf(SIGMA)))
    x = np.linspace(-0.9, 0.9, 50)
    assert np.allclose(np.log(tail(x)), law.logsf(x), rtol=0.01, atol=1e-3)
    assert tail(np.array([1.5])) < 1e-15 and tail(np.array([-1.5])) == 1


def test_a_searcher_knows_the_background_of_its_matrix():
    rows, queries = world(5, 1500, 300, 64, 0.5)
    segment = Segment("", rows.astype(np.float16), np.arange(1500), np.zeros(1500, bool))
    searcher = Searcher(Matrix("k", 1, 64, (segment,)))
    highest = [searcher.search(query, 1).scores[0] for query in queries]
    assert np.mean(np.array(highest) > searcher.background.line) < 0.07
    assert searcher.background is searcher.background


def test_hits_say_their_chance_and_expansion_does_not_flatter_them(tmp_path):
    rows, queries = world(6, 200, 40, 64, 0.5, series=10)
    with Index.create(tmp_path / "a.crow", recipe="crow", whitening="none") as index:
        index.store.upsert(Row(f"/{i}.jpg", row.astype(np.float32)) for i, row in enumerate(rows))
        plain = index.search("/0.jpg", k=200)
        assert {hit.path for hit in plain if hit.match} >= {f"/{i}.jpg" for i in range(5)}
        assert [hit.chance for hit in plain] == sorted(hit.chance for hit in plain)
        judged = {hit.path: (hit.chance, hit.match) for hit in plain}
        for hit in index.search("/0.jpg", k=200, expand=5):
            assert hit.chance == pytest.approx(judged[hit.path][0], rel=1e-3) and hit.match == judged[hit.path][1]
        flattered = [index.search(query.astype(np.float32), k=1, expand=10)[0].match for query in queries]
        assert np.mean(flattered) <= 0.1
