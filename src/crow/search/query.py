"""Queries and answers: what can be asked with, how several become one vector, and what comes back."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crow.search.matrix import SearchError
from crow.search.store import Row, Vectors
from crow.search.work import Describes

Box = Sequence[float]
Floats = NDArray[np.float64]
DATE = re.compile(r"\d{4}(-\d\d(-\d\d(T\d\d(:\d\d(:\d\d)?)?)?)?)?")


@dataclass(frozen=True)
class Hit:
    """A picture that was found."""

    path: str
    score: float  # cosine
    chance: float  # that an unrelated picture of this collection scores as high; NaN where too few are there to know
    match: bool  # stands above the line where matches end
    width: int = 0
    height: int = 0
    taken: str | None = None

    def _repr_html_(self) -> str:
        from crow.search.notebook import hit_html

        return hit_html(self)


def hits_of(rows: Sequence[Row | None], scores: Floats, chances: Floats, matches: NDArray[np.bool_]) -> list[Hit]:
    """What was found, without rows that are gone."""
    found = zip(rows, scores.tolist(), chances.tolist(), matches.tolist(), strict=True)
    return [Hit(row.path, s, c, m, row.width, row.height, row.taken) for row, s, c, m in found if row is not None]


class Results(list[Hit]):
    """Hits, the best first; `vector` is what was searched with, `line` the score at which matches end (NaN: unknown)."""

    def __init__(self, hits: Sequence[Hit] = (), vector: Vectors | None = None, line: float = math.nan) -> None:
        super().__init__(hits)
        self.vector, self.line = vector, line

    def _repr_html_(self) -> str:
        from crow.search.notebook import results_html

        return results_html(self)


@dataclass(frozen=True)
class Filter:
    """Which pictures count."""

    under: str | None = None
    after: str | None = None
    before: str | None = None

    @classmethod
    def of(cls, under: str | None, after: str | None, before: str | None) -> Filter | None:
        """A filter, or None where every picture counts; a date that is none is an error."""
        for date in (after, before):
            if date is not None and not DATE.fullmatch(date):
                raise SearchError(f"a date is written 2024, 2024-05, 2024-05-06 or 2024-05-06T12:00:00; not {date!r}")
        return cls(under, after, before) if under or after or before else None


def read_query(
    query: Any, box: Any, members: Callable[[Sequence[str]], list[Vectors | None]], describer: Callable[[], Describes]
) -> Vectors:
    """(m, K) raw vectors of one or several paths, members, pictures or vectors."""
    queries = list(query) if isinstance(query, list | tuple) else [query]
    if not queries:
        raise SearchError("a search needs at least one query")
    boxes = list(box) if box is not None and np.ndim(box) == 2 else [box] * len(queries)
    if len(boxes) != len(queries) or (box is not None and np.ndim(box) == 1 and len(queries) > 1):
        raise SearchError(f"{len(queries)} queries take a list of {len(queries)} boxes (None for a whole picture)")
    raw = np.concatenate([_one(q, b, members, describer) for q, b in zip(queries, boxes, strict=True)])
    if not np.isfinite(raw).all():
        raise SearchError("the query holds NaN or infinity")
    return raw


def _one(
    query: Any,
    box: Box | None,
    members: Callable[[Sequence[str]], list[Vectors | None]],
    describer: Callable[[], Describes],
) -> Vectors:
    """(1, K), or (m, K) for an array of vectors."""
    if isinstance(query, np.ndarray) and query.dtype.kind == "f" and query.ndim in (1, 2):
        if box is not None:
            raise SearchError("a vector has no box")
        return np.atleast_2d(np.asarray(query, np.float32))
    if isinstance(query, str | Path):
        known = members([str(query)])[0] if box is None else None
        if known is not None:
            return known[None]
        if not Path(query).exists():
            raise SearchError(f"{query}: neither in the index nor a file")
    return np.asarray(describer()([query], box=box) if box is not None else describer()([query]), np.float32)


def combined(vectors: Vectors) -> Vectors:
    """(m, d) -> (d,): several queries are the sum of their unit vectors, of length 1 again."""
    total = vectors.astype(np.float64).sum(0)
    length = np.linalg.norm(total)
    if not np.isfinite(length) or length == 0:
        raise SearchError("the query is zero: it points nowhere")
    unit: Vectors = (total / length).astype(np.float32)
    return unit
