"""Approximate: candidates for a query without looking at every row, for collections of a million pictures and more.

FAISS proposes, `Searcher` decides: candidates are always scored again on the rows of the matrix, and rows that came
after the build are searched exactly beside them. How much of the exact answer is found is measured when it is built.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
from numpy.typing import NDArray

from crow.search.matrix import Matrix, SearchError
from crow.search.nearest import Searcher
from crow.search.sealed import Damaged, crc_of, expect, fields_of, put, put_fields
from crow.search.store import Ids, Vectors

FROM = 1_000_000  # rows; with fewer the exact search answers in milliseconds
LEAST = 4096  # rows; with fewer there is too little to learn the codes from
RECALL = 0.965  # of the ten nearest: the least effort that reaches it on the sample is taken; 0.95 is promised
SAMPLE = 400  # rows that the recall is measured on: it is known to about half a hundredth
KEPT = 0.99  # of the variance: axes beyond are left to the scoring; the codes lose ten times as much
CANDIDATES = 150  # of FAISS for every search, or four for each result if that is more; 200 cost more than they found
STALE = 0.2  # share of the rows gone or new since the build, from where on another build pays
BLOCK = 1 << 15
NAMES = "approximate.json"  # written last; names the other files, with their checksums


EFFORTS = sorted({round(1.1**step) for step in range(120)})


class Stopped(Exception):
    """The build was asked to stop; nothing was left behind."""


@dataclass(frozen=True)
class Kind:
    """A family of FAISS: how one is described for n rows of d axes, and the efforts that a search may make."""

    factory: Callable[[int, int], str]
    effort: str  # the parameter's name in FAISS
    efforts: Callable[[int], list[int]]  # for n rows, rising


def _lists(n: int) -> int:
    """About half the root of n, a power of two: with as many lists as a list has rows, starting on them took longer."""
    return int(2 ** max(0, round(np.log2(max(n, 1)) / 2) - 1))


def _quantized(n: int, axes: int) -> str:
    """Lists of 4-bit codes that are scanned in registers: one for every two axes, but 64 at most where four will do."""
    parts = max(-(-axes // 4), min(-(-axes // 2), 64), min(axes, 32))
    padded = -(-axes // parts) * parts
    return ("" if padded == axes else f"Pad{padded},") + f"IVF{_lists(n)},PQ{parts}x4fs"


KINDS: dict[str, Kind] = {
    "ivf-pq": Kind(_quantized, "nprobe", lambda n: [e for e in EFFORTS if e < _lists(n)] + [_lists(n)]),
    "hnsw": Kind(lambda n, axes: "HNSW32_SQ8", "efSearch", lambda n: [e for e in EFFORTS if 16 <= e <= 2048]),
}


@dataclass(frozen=True, eq=False)
class Approximate:
    """A built index over the rows that a matrix had then."""

    kind: str
    key: str  # of the matrix
    ids: Ids  # (n,) rising: what was there when it was built
    effort: int
    recall: float  # of the ten nearest, measured at build time
    index: Any  # faiss.Index

    def candidates(self, query: Vectors, k: int) -> Ids:
        """(d,) -> the ids that are worth scoring; some may be gone by now."""
        with _one_thread():
            _, at = self.index.search(query[None], min(max(CANDIDATES, 4 * k), len(self.ids)))
        return np.sort(self.ids[at[0][at[0] >= 0]])

    def is_stale(self, matrix: Matrix) -> bool:
        """Whether so much came and went that it should be built again."""
        if matrix.key != self.key:
            return True
        ids = matrix.ids
        kept = int((ids <= self.ids[-1]).sum())
        return (len(self.ids) - kept) + (len(ids) - kept) > STALE * len(self.ids)

    def save(self, folder: Path) -> None:
        """Write it whole or not at all; the file that names the others goes last."""
        import faiss

        folder.mkdir(parents=True, exist_ok=True)
        name = uuid4().hex
        index = faiss.serialize_index(self.index)
        put(folder / f"{name}.faiss", [index])
        put(folder / f"{name}.ids", [self.ids])
        made = {"name": name, "kind": self.kind, "key": self.key, "effort": self.effort, "recall": self.recall}
        put_fields(folder / NAMES, made | {"crc": {"faiss": crc_of([index]), "ids": crc_of([self.ids])}})
        for path in folder.iterdir():
            if path.suffix in (".faiss", ".ids", ".half") and path.stem != name:
                path.unlink(missing_ok=True)

    @classmethod
    def load(cls, folder: Path, key: str) -> Approximate | None:
        """What `save` wrote for a matrix with this key; None where that is missing or damaged."""
        import faiss

        for _ in range(5):
            try:
                made = fields_of(folder / NAMES)
                if made.get("key") != key:
                    return None
                ids = _part(folder, made, "ids").view(np.int64)
                index = faiss.deserialize_index(_part(folder, made, "faiss"))
                found = cls(made["kind"], key, ids, int(made["effort"]), float(made["recall"]), index)
                _make_effort(index, KINDS[found.kind], found.effort)
                return found
            except FileNotFoundError:
                continue
            except (OSError, Damaged):
                return None
        return None

    @staticmethod
    def problems(folder: Path) -> Iterator[str]:
        """What is wrong with the files on disk, in words."""
        try:
            if (folder / NAMES).exists() and (made := fields_of(folder / NAMES)):
                for part in ("ids", "faiss"):
                    _part(folder, made, part)
        except FileNotFoundError as error:
            yield f"{Path(error.filename).name}: is gone"
        except (OSError, Damaged) as error:
            yield str(error)


def build(matrix: Matrix, kind: str = "ivf-pq", go_on: Callable[[], bool] = lambda: True) -> Approximate:
    """Build over all rows of a matrix, and choose the effort by the recall on some of them."""
    import faiss

    if kind not in KINDS:
        raise SearchError(f"no approximate index named {kind!r}; there are: {', '.join(KINDS)}")
    ids = matrix.ids
    if len(ids) < LEAST:
        raise SearchError(f"an approximate index is built from {LEAST} pictures on; here are {len(ids)}")
    random = np.random.default_rng(0)
    some = matrix.vectors(random.permutation(ids)[: max(100 * _lists(len(ids)), 1 << 14)])
    axes = axes_of(some)
    index = faiss.index_factory(matrix.dim, f"PCAR{axes}," + KINDS[kind].factory(len(ids), axes), faiss.METRIC_L2)
    index.train(some)
    for start in range(0, len(ids), BLOCK):
        if not go_on():
            raise Stopped
        index.add(matrix.vectors(ids[start : start + BLOCK]))
    sample = matrix.vectors(random.permutation(ids)[:SAMPLE])
    exact = [found.ids for found in Searcher(matrix).search_all(sample, 11)]
    made = Approximate(kind, matrix.key, ids, 0, 0.0, index)
    for effort in KINDS[kind].efforts(len(ids)):
        _make_effort(index, KINDS[kind], effort)
        recall = recall_of(made, matrix, sample, exact)
        made = Approximate(kind, matrix.key, ids, effort, recall, index)
        if recall >= RECALL:
            break
    return made


def axes_of(rows: Vectors) -> int:
    """(n, d) -> how many principal axes hold nearly all of the variance; a rotation within them shares it out evenly."""
    variances = np.linalg.eigvalsh(np.atleast_2d(np.cov(rows.T)))[::-1].clip(0)
    return int(np.searchsorted(np.cumsum(variances), KEPT * variances.sum())) + 1


def recall_of(made: Approximate, matrix: Matrix, queries: Vectors, exact: list[Ids]) -> float:
    """The share of the exact answers, the query itself left out, that is among the candidates."""
    found = [np.isin(ids[1:], made.candidates(query, len(ids))) for query, ids in zip(queries, exact, strict=True)]
    return float(np.mean(np.concatenate(found)))


@contextmanager
def _one_thread() -> Iterator[None]:
    """FAISS keeps to the caller's thread: one query is too short to share, and on a busy machine the others come late."""
    import faiss

    before = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(1)
    try:
        yield
    finally:
        faiss.omp_set_num_threads(before)


def _part(folder: Path, made: dict[str, Any], part: str) -> NDArray[np.uint8]:
    """The bytes of one of the files, if they are the ones that were written."""
    file = folder / f"{made['name']}.{part}"
    data: NDArray[np.uint8] = expect(file, np.fromfile(file, np.uint8), made["crc"][part])
    return data


def _make_effort(index: Any, kind: Kind, effort: int) -> None:
    import faiss

    faiss.ParameterSpace().set_index_parameter(index, kind.effort, effort)
