"""Scan: the rows of a piece of a matrix that score highest, by FAISS, where they lie.

A piece is scanned in its own sixteen bits. Where all pieces are small enough to keep a copy of them in eight, that copy
is scanned first: half of the bytes, and one thread is done before a second one would be awake. How far rounding can
have moved a score is known, so whoever asks sees whether any row outside the candidates could belong to the answer.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crow.search.store import Ids, Vectors

Candidates = tuple[NDArray[np.float16], Ids, float]  # rows, ids, and the score that no other row exceeds

SIGNED = 127  # what the largest number becomes in eight bits
AT_ONCE = 1 << 14  # rows that are rounded at a time


@dataclass(frozen=True, eq=False)
class Piece:
    """Rows that one thread scans; `picked` says which of them count (None: all)."""

    rows: NDArray[np.float16]  # (n, d)
    ids: Ids  # (n,)
    picked: NDArray[np.bool_] | None = None

    @property
    def count(self) -> int:
        """How many rows count."""
        return len(self.ids) if self.picked is None else int(self.picked.sum())

    @cached_property
    def bits(self) -> NDArray[np.uint8] | None:
        """`picked` as FAISS reads it."""
        return None if self.picked is None else np.packbits(self.picked, bitorder="little")

    def candidates(self, scores: NDArray[np.float32], at: Ids, error: float) -> Candidates:
        """What a scan brought back; `error`: how far a score may be from the true one."""
        found = at[at >= 0]
        full = len(found) == len(at) and len(at) < self.count
        return self.rows[found], self.ids[found], float(scores.min()) + error if full else -np.inf


@dataclass(frozen=True, eq=False)
class Rounded:
    """A piece with its rows in eight bits beside them."""

    piece: Piece
    codes: NDArray[np.uint8]  # (n, d), 128 for zero
    scale: float  # what a number was multiplied by
    error: float  # the length of what rounding took from a row, at most

    @classmethod
    def of(cls, piece: Piece) -> Rounded:
        """A piece, rounded some rows at a time."""
        blocks = [slice(start, start + AT_ONCE) for start in range(0, len(piece.ids), AT_ONCE)]
        scale = scale_of([float(np.abs(piece.rows[block]).max()) for block in blocks])
        codes, error = np.empty(piece.rows.shape, np.uint8), 0.0
        for block in blocks:
            rows = piece.rows[block].astype(np.float32)
            whole = np.rint(rows * np.float32(scale))
            error = max(error, float(np.linalg.norm(rows - whole / np.float32(scale), axis=1).max()))
            codes[block] = (whole + 128).astype(np.uint8)
        return cls(piece, codes, scale, error)


def scale_of(largest: list[float]) -> float:
    """What brings the largest of some numbers to the end of eight bits."""
    return SIGNED / (max(largest, default=0.0) or 1.0)


def scan(piece: Piece, query: Vectors, k: int) -> Candidates:
    """The k rows of a piece that score highest."""
    scores, at = _scanned(np.ascontiguousarray(piece.rows), "QT_fp16", piece, query, k)
    return piece.candidates(scores, at, _float_error(query))


def scan_rounded(rounded: Rounded, query: Vectors, k: int) -> Candidates:
    """The k rows of a piece that score highest in eight bits, the query too: FAISS multiplies whole numbers then."""
    scale = scale_of([float(np.abs(query).max())])
    whole = np.rint(query * np.float32(scale))
    scores, at = _scanned(rounded.codes, "QT_8bit_direct_signed", rounded.piece, whole, k)
    lost = float(np.linalg.norm(query - whole / np.float32(scale)))
    error = rounded.error + lost + rounded.error * lost  # of the row, of the query, of both; unit vectors
    return rounded.piece.candidates(scores / np.float32(scale * rounded.scale), at, error + _float_error(query))


def _float_error(query: Vectors) -> float:
    """Twice the rounding of a float32 sum of so many products of unit vectors."""
    return len(query) * 2.0**-23


def _scanned(codes: NDArray[Any], kind: str, piece: Piece, query: Vectors, k: int) -> tuple[NDArray[np.float32], Ids]:
    """Scores and places of the k best; -1 where there are fewer."""
    import faiss

    n, d = codes.shape
    k = min(k, n)
    flat = codes.view(np.uint8).reshape(-1)
    selector = None if piece.bits is None else faiss.IDSelectorBitmap(piece.bits)
    quantizer = faiss.ScalarQuantizer(d, getattr(faiss.ScalarQuantizer, kind))
    scanner = quantizer.select_InvertedListScanner(faiss.METRIC_INNER_PRODUCT, None, True, selector, False)
    try:
        scores, at = np.full(k, -np.inf, np.float32), np.full(k, -1, np.int64)
        scanner.set_query(faiss.swig_ptr(query))
        scanner.set_list(0, 0.0)
        scanner.scan_codes(n, faiss.swig_ptr(flat), None, faiss.swig_ptr(scores), faiss.swig_ptr(at), k)
    finally:
        scanner.__swig_destroy__(scanner)  # FAISS leaves this to its caller, and SWIG does not do it by itself
    return scores, at
