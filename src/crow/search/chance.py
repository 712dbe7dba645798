"""Chance: how high unrelated pictures of a collection score by themselves, and so where matches end.

A cosine means little alone: in one collection 0.6 is remarkable, in another any two pictures reach it. Here the
scores of a sample of the collection with itself are taken apart (Tukey's median polish): a centre, an effect of each
picture (some are like everything), and residuals. Nearly all of the pairs are unrelated, and medians do not feel the
others; so the middle of the residuals, up to one standard deviation above their median, tells how far unrelated pairs
scatter, and the law of the cosine between random directions, in as many dimensions as give that scatter, carries it
on to where too few pairs are left to count. The line is the score that a query without any match in the collection
reaches with one in twenty-five. Where the best results stand above it, it gives way step by step for the next ones
(Benjamini and Hochberg's procedure): among ten matches, a false one is a smaller harm than as the only answer.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from crow.search.matrix import Matrix

SAMPLE = 512  # pictures whose scores with each other are looked at: 130,000 pairs in a tenth of a second
FEWEST = 30  # pictures; with fewer, nobody can tell what is unusual here
SAME = 0.999  # the query itself, or a copy of it: tells nothing about whether it has matches
RISK = 0.04  # of a query without a match to get one all the same; a fifth below the 5 % that is promised
SIGMA = 0.8413  # the quantile one standard deviation above the median; the few related pairs lie beyond it
LOPSIDED = 2.5  # residuals that reach so much further up than down: related pairs are no exception here
ROUNDS, STEP = 10, 0.7  # of the polish; a full step would swing, since every effect enters rows and columns
EFFECTS = 32  # quantiles that stand for the effects
GRID = np.linspace(-1, 1, 401)

Numbers = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Background:
    """What unrelated pictures of a collection score."""

    logarithms: Numbers  # (401,): of the chance that an unrelated picture reaches each score of GRID; empty: unknown
    line: float  # where matches end for a query that has none; NaN where that cannot be known

    @classmethod
    def of(cls, matrix: Matrix) -> Background:
        """From a sample of the collection itself."""
        ids = np.random.default_rng(0).permutation(matrix.ids)[:SAMPLE]
        rows = matrix.vectors(ids)
        return cls.from_scores((rows @ rows.T).astype(np.float64), len(matrix))

    @classmethod
    def from_scores(cls, scores: Numbers, count: int) -> Background:
        """(m, m) scores of a sample with itself, out of a collection of `count` pictures."""
        unknown = cls(np.empty(0), math.nan)
        if len(scores) < FEWEST:
            return unknown
        effects, residuals = polish(scores)
        centre = float(np.median(residuals))
        down, up = np.quantile(residuals - centre, [1 - SIGMA, SIGMA])
        if not 0 < up < LOPSIDED * -down:
            return unknown
        effects = np.quantile(effects, (np.arange(EFFECTS) + 0.5) / EFFECTS)
        expected = centre + effects[:, None] + effects
        tails = tail_of(float(up))(GRID[:, None, None] - expected)  # (401, 32, 32)
        nobody = (
            np.log1p(-np.minimum(tails, 1 - 1e-12)).mean(2) * count
        )  # (401, 32): log chance that none is, for each kind of query
        somebody = (1 - np.exp(nobody)).mean(1)
        above = int(np.argmax(somebody <= RISK))
        line = float(np.interp(-RISK, -somebody[above - 1 : above + 1], GRID[above - 1 : above + 1])) if above else 1.0
        return cls(np.log(tails.mean((1, 2))), line) if line < 1 else unknown

    @property
    def known(self) -> bool:
        """Whether this collection tells anything."""
        return len(self.logarithms) > 0

    def chances(self, scores: Numbers) -> Numbers:
        """(k,) -> (k,): that an unrelated picture of this collection scores as high; NaN where that cannot be known."""
        if not self.known:
            return np.full(len(scores), math.nan)
        return np.exp(np.interp(scores, GRID, self.logarithms))

    def line_among(self, scores: Numbers) -> float:
        """Where matches end among the falling scores (k,) of one query; NaN where that cannot be known."""
        others = scores[scores < SAME]
        bearable = self.chances(np.array([self.line])) * np.arange(1, len(others) + 1)
        passed = np.flatnonzero(self.chances(others) <= bearable)
        return min(self.line, float(others[passed[-1]])) if len(passed) else self.line


def polish(scores: Numbers) -> tuple[Numbers, Numbers]:
    """(m, m) symmetric -> (m,) the effect of each picture, (m, m - 1) what of its scores with others is left."""
    m = len(scores)
    others = ~np.eye(m, dtype=bool)
    effects = np.zeros(m)
    for _ in range(ROUNDS):
        rest = (scores - effects[:, None] - effects)[others].reshape(m, m - 1)
        effects = effects + STEP * (np.median(rest, axis=1) - np.median(rest))
    return effects, (scores - effects[:, None] - effects)[others].reshape(m, m - 1)


def tail_of(sigma: float) -> Callable[[Numbers], Numbers]:
    """The chance that two random directions have a cosine above x, in the dimensions where 1 - SIGMA are above sigma."""
    x = np.linspace(-1, 1, 8001)
    few, many = 1.0, 1e6
    for _ in range(50):
        dims = math.sqrt(few * many)
        logs = dims * np.log1p(-np.minimum(x**2, 1 - 1e-15))  # the density is (1 - x^2) to the power of (d - 3) / 2
        tail = np.cumsum(np.exp(logs - logs.max())[::-1])[::-1]
        few, many = (dims, many) if np.interp(sigma, x, tail) > (1 - SIGMA) * tail[0] else (few, dims)
    return lambda scores: np.exp(np.interp(scores, x, np.log(np.maximum(tail / tail[0], 1e-300))))
