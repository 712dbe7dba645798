"""Nearest: the rows of a matrix that are most like a query, exactly; and query expansion.

FAISS scans the float16 rows where they lie, memory-mapped, a piece of the matrix per thread (`scan`). What it brings back is
scored again in float64, and the scan is repeated with more candidates until no row outside them could belong to the
answer. So the answer is that of a full sort of the stored rows, ties broken by id, with or without a filter.
"""

from __future__ import annotations

import os
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from crow.search.chance import Background
from crow.search.matrix import Matrix, SearchError, Segment
from crow.search.scan import Candidates, Piece, Rounded, scan, scan_rounded
from crow.search.store import Ids, Vectors

FEWEST = 1 << 12  # rows that are scored at once without FAISS
SPARE = 22  # candidates beyond k from every piece: enough that one scan nearly always settles the answer
SMALL = 1 << 14  # rows that one thread scans faster than a second one can be woken
QUICK = 1 << 26  # numbers of a matrix of which a second copy, in eight bits, is worth its memory
NEAR = 118  # candidates beyond k in that copy
TRUST = 8  # answers that it may owe before it is done without: some collections lie closer together than it can tell
FEW = 1 / 32  # of a segment: fewer rows than that are copied out, more are picked by a bitmap during the scan


@dataclass(frozen=True, eq=False)
class Found:
    """Ids and cosines, the highest first, equal ones by rising id; rounding may leave a cosine a hair above 1."""

    ids: Ids  # (k,)
    scores: NDArray[np.float64]  # (k,)

    def __len__(self) -> int:
        return len(self.ids)


class Proposals(Protocol):
    """What an approximate index gives: ids worth scoring, out of those it was built over."""

    @property
    def ids(self) -> Ids:
        """Rising."""

    def candidates(self, query: Vectors, k: int) -> Ids:
        """(d,) -> ids."""


class Searcher:
    """Answers queries over one matrix; it may be shared by threads."""

    def __init__(self, matrix: Matrix, threads: int | None = None, proposals: Proposals | None = None) -> None:
        self.matrix, self.proposals = matrix, proposals
        self._later = matrix.ids[np.searchsorted(matrix.ids, proposals.ids[-1], "right") :] if proposals else None
        self.threads = threads or len(os.sched_getaffinity(0))
        self._pool = ThreadPoolExecutor(self.threads, "crow-search")
        self._pieces = [p for s in matrix.segments for p in self._cut(s, None if not s.dead.any() else ~s.dead)]
        self._quick: Future[list[Rounded]] | None = None
        self._trust = TRUST if SMALL * matrix.dim < sum(p.rows.size for p in self._pieces) <= QUICK else 0

    def search(self, query: ArrayLike, k: int = 10, allowed: Ids | None = None, approximate: bool = False) -> Found:
        """(d,) -> the k nearest of all rows, or of those whose ids are allowed.

        Approximate: of the rows that the approximate index proposes, if it has as many, and those that came later.
        """
        unit = unit_query(query, self.matrix.dim)
        if k < 1:
            raise SearchError(f"k is at least 1, not {k}")
        if approximate and self.proposals is None:
            raise SearchError("this index has no approximate search")
        if approximate and allowed is None and self.proposals is not None:
            proposed = self.proposals.candidates(unit, k)
            allowed = np.concatenate([proposed, self._later]) if len(proposed) >= k else None
        if allowed is None:
            return self._quickly(unit, k) or self._exact(self._pieces, unit, k)
        allowed = rising(np.asarray(allowed, np.int64))
        if len(allowed) <= FEWEST:
            return self._few(allowed, unit, k)
        return self._exact(self._filtered(allowed), unit, k)

    def _exact(self, pieces: list[Piece], unit: Vectors, k: int) -> Found:
        wanted = k + SPARE
        while (found := settled(self._scan(pieces, unit, wanted), unit, k)) is None:
            wanted *= 8
        return found

    def _quickly(self, unit: Vectors, k: int) -> Found | None:
        """The answer, if rows in eight bits can give it; they are made beside the first search of many."""
        if self._trust <= 0 or k > NEAR:
            return None
        if self._quick is None:
            self._quick = self._pool.submit(lambda: [Rounded.of(piece) for piece in self._pieces])
        if not self._quick.done():
            return None
        found = settled([scan_rounded(each, unit, k + NEAR) for each in self._quick.result()], unit, k)
        self._trust = min(self._trust + 1, 2 * TRUST) if found else self._trust - TRUST // 2
        return found

    def _few(self, allowed: Ids, unit: Vectors, k: int) -> Found:
        ids, rows = [allowed[:0]], [np.empty((0, self.matrix.dim), np.float16)]
        for segment in self.matrix.segments:
            if not len(segment):
                continue
            first, last = np.searchsorted(allowed, (segment.ids[0], segment.ids[-1] + 1))
            which, at = segment.find(allowed[first:last])
            ids.append(allowed[first:last][which])
            rows.append(segment.rows[at])
        return best(np.concatenate(ids), cosines(np.concatenate(rows), unit), k)

    @cached_property
    def background(self) -> Background:
        """What unrelated pictures score here; worked out when first asked for."""
        return Background.of(self.matrix)

    def search_all(self, queries: ArrayLike, k: int = 10) -> list[Found]:
        """(n, d) -> one answer per query."""
        return [self.search(query, k) for query in np.asarray(queries, np.float32)]

    def _scan(self, pieces: list[Piece], query: Vectors, k: int) -> list[Candidates]:
        """The candidates of every piece; small work stays in this thread."""
        if self.threads == 1 or len(pieces) < 2 or sum(p.count for p in pieces) < SMALL:
            return [scan(piece, query, k) for piece in pieces]
        return list(self._pool.map(lambda piece: scan(piece, query, k), pieces))

    def _cut(self, segment: Segment, picked: NDArray[np.bool_] | None) -> list[Piece]:
        """A segment in pieces of like size, so that every thread has its share of the whole matrix."""
        size = max(SMALL // 2, -(-sum(map(len, self.matrix.segments)) // self.threads))
        count = max(1, round(len(segment) / size))
        edges = np.linspace(0, len(segment), count + 1).astype(int)
        spans = [slice(a, b) for a, b in pairwise(edges)]
        return [Piece(segment.rows[s], segment.ids[s], None if picked is None else picked[s]) for s in spans]

    def _filtered(self, allowed: Ids) -> list[Piece]:
        """Pieces that hold nothing but the allowed rows, or that pick them."""
        pieces: list[Piece] = []
        for segment in self.matrix.segments:
            _, rows = segment.find(allowed)
            if len(rows) == 0:
                continue
            if len(rows) < FEW * len(segment):
                pieces.append(Piece(segment.rows[rows], segment.ids[rows]))
            else:
                picked = np.zeros(len(segment), bool)
                picked[rows] = True
                pieces += self._cut(segment, picked)
        return pieces


def rising(ids: Ids) -> Ids:
    """Sorted, each once; a store's answer is that already, which is quick to see."""
    return ids if (ids[1:] > ids[:-1]).all() else np.unique(ids)


def unit_query(query: ArrayLike, dim: int) -> Vectors:
    """(d,) -> (d,) of length 1; NaN, infinity, zero and another length are refused."""
    vector = np.asarray(query, np.float64)
    if vector.shape != (dim,):
        raise SearchError(f"a query for this index is a vector of {dim} numbers, not of shape {vector.shape}")
    if not np.isfinite(vector).all():
        raise SearchError("the query holds NaN or infinity")
    largest = np.abs(vector).max()
    if largest == 0:
        raise SearchError("the query is zero: it points nowhere")
    vector = vector / largest  # so that neither tiny nor huge numbers are lost in the square
    return (vector / np.linalg.norm(vector)).astype(np.float32)


def cosines(rows: NDArray[Any], query: Vectors) -> NDArray[np.float64]:
    """(n, d), (d,) -> (n,) in float64, each row summed in the same order wherever it lies, so that equal rows tie."""
    return (rows.astype(np.float64) * query).sum(axis=1)


def best(ids: Ids, scores: NDArray[np.float64], k: int) -> Found:
    """(n,), (n,) -> the k highest scores, equal ones by rising id."""
    order = np.lexsort((ids, -scores))[:k]
    return Found(ids[order], scores[order])


def settled(parts: list[Candidates], query: Vectors, k: int) -> Found | None:
    """The k best of the candidates of all pieces; None where a row outside them could belong to the answer."""
    if not parts:
        return Found(np.empty(0, np.int64), np.empty(0))
    rows, ids, bounds = zip(*parts, strict=True)
    found = best(np.concatenate(ids), cosines(np.concatenate(rows), query), k)
    return found if max(bounds) == -np.inf or (len(found) == k and max(bounds) < found.scores[-1]) else None
