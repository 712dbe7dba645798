"""What `crow bench search` measures."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np

from crow.app.bench import Measure, against, milliseconds, spread, timed
from crow.search.approximate import build
from crow.search.index import Index
from crow.search.matrix import BLOCK, Matrix, Segment
from crow.search.nearest import Searcher
from crow.search.store import Ids, Row, Vectors

DIM, INTRINSIC, CLUSTERS = 256, 64, 20_000  # what the search is measured on, see `clustered`
K = 10
QUERIES = 200


def clustered(count: int, draw: int = 0, dim: int = DIM) -> Iterator[Vectors]:
    """Unit vectors (count, dim) in chunks: Gaussian clusters of intrinsic dimension 64, hard for approximate search.

    The noise around a centre is as long as the way to the nearest other centre. Draws share the centres, not the rows.
    """
    random = np.random.default_rng(0)
    centres = random.standard_normal((CLUSTERS, INTRINSIC), np.float32)
    axes = np.linalg.qr(random.standard_normal((dim, INTRINSIC)))[0].T.astype(np.float32)
    noise = neighbours(centres) / INTRINSIC**0.5
    random = np.random.default_rng((1, draw))
    for start in range(0, count, 1 << 16):
        which = random.integers(0, CLUSTERS, min(1 << 16, count - start))
        rows = centres[which] + noise * random.standard_normal((len(which), INTRINSIC), np.float32)
        rows = rows @ axes
        yield rows / np.linalg.norm(rows, axis=1, keepdims=True)


def neighbours(centres: Vectors, sample: int = 500) -> float:
    """The median distance of a centre to the nearest other one, over the first `sample` of them."""
    some = centres[:sample]
    squares = (some**2).sum(1)[:, None] + (centres**2).sum(1) - 2 * some @ centres.T
    squares[np.arange(len(some)), np.arange(len(some))] = np.inf
    return float(np.median(np.sqrt(squares.min(1))))


def recall(found: Iterable[Ids], truth: Iterable[Ids]) -> float:
    """The share of the true ids that was found."""
    return float(np.mean([np.isin(t, f).mean() for f, t in zip(found, truth, strict=True)]))


def search(rows: int = 1_000_000, few: int = 100_000, folder: Path | None = None) -> Iterator[Measure]:
    """Every measurement of the search: exact against its rivals, filters, a cold process, approximate."""
    yield from exact(few)
    yield from filters(few)
    with tempfile.TemporaryDirectory(dir=folder, prefix="crow-bench-") as place:
        yield from cold(rows, Path(place) / "bench.crow")
    with tempfile.TemporaryDirectory(dir=folder, prefix="crow-bench-") as place:
        yield from approximate(rows, Path(place))


def exact(rows: int) -> Iterator[Measure]:
    """One exact query at a time against FAISS's flat index on 1 and 2 threads and against NumPy, in float32."""
    import faiss

    data, queries = whole(rows), whole(QUERIES, 1)
    searcher = Searcher(matrix_of([data]))
    flat = faiss.IndexFlatIP(DIM)
    flat.add(data)

    def with_threads(threads: int) -> Callable[[Vectors], Any]:
        def answer(query: Vectors) -> Any:
            faiss.omp_set_num_threads(threads)
            return flat.search(query[None], K)

        return answer

    def plain(query: Vectors) -> Ids:
        scores = data @ query
        best = np.argpartition(scores, -K)[-K:]
        return best[np.argsort(-scores[best])]

    rivals = {"FAISS flat, 1 thread": with_threads(1), "FAISS flat, 2 threads": with_threads(2), "NumPy": plain}
    times = timed({"crow": lambda query: searcher.search(query, K), **rivals}, queries)
    truth = [np.argsort(-(data.astype(np.float64) @ query))[:K] for query in queries[:100].astype(np.float64)]
    found = recall([searcher.search(query, K).ids for query in queries[:100]], truth)
    name = f"exact search, {rows:,} x {DIM}"
    yield against(name, times, 2.0)
    yield Measure(f"{name}: recall@{K} of float64", found, wanted="at least 0.999", holds=found >= 0.999)


def filters(rows: int) -> Iterator[Measure]:
    """Searches with a filter against a full sort of the rows that it lets through."""
    data, queries, random = whole(rows), whole(50, 2), np.random.default_rng(0)
    searcher = Searcher(matrix_of([data]))
    for share in (0.001, 0.01, 0.1):
        allowed = np.sort(random.permutation(rows)[: int(share * rows)])
        kept = data[allowed].astype(np.float16).astype(np.float64)
        truth = [allowed[np.lexsort((allowed, -(kept @ query)))[:K]] for query in queries.astype(np.float64)]
        found = [searcher.search(query, K, allowed).ids for query in queries]
        same = float(np.mean([np.array_equal(ids, others) for ids, others in zip(found, truth, strict=True)]))
        times = [milliseconds(partial(searcher.search, k=K, allowed=allowed), query) for query in queries]
        name = f"filter that lets {100 * share:g} % through, {rows:,} x {DIM}"
        yield Measure(f"{name}: answers equal to a full sort", same, wanted="all", holds=same == 1)
        yield Measure(f"{name}: time", median(times), "ms", spread(times))


ASK = """
import json, sys
from crow.search.index import Index
with Index.open(sys.argv[1]) as index:
    first = index.search(sys.argv[2])[0].path
sizes = dict(line.split(":") for line in open("/proc/self/status") if line.startswith(("VmRSS", "RssAnon")))
sizes = {name: int(size.split()[0]) / 1e3 for name, size in sizes.items()}
print(json.dumps({"right": first == sys.argv[2] and "torch" not in sys.modules, **sizes}))
"""


def cold(rows: int, place: Path, runs: int = 5) -> Iterator[Measure]:
    """A process that starts, opens an index and searches by a member: its time and its memory."""
    fill(rows, place)
    seconds, answers = [], []
    for run in range(runs):
        command = [sys.executable, "-c", ASK, str(place), f"/{run * 7919 % rows}.jpg"]
        start = perf_counter()
        done = subprocess.run(command, capture_output=True, check=True, env={**os.environ, "PYTHONPATH": source()})
        seconds.append(perf_counter() - start)
        answers.append(json.loads(done.stdout))
    right = all(answer["right"] for answer in answers)
    resident, own = (max(answer[name] for answer in answers) for name in ("VmRSS", "RssAnon"))
    name, took = f"cold process, {rows:,} x {DIM}", median(seconds)
    yield Measure(
        f"{name}: start, open, search by member, end", took, "s", spread(seconds), None, {}, "under 1.5", took < 1.5
    )
    yield Measure(f"{name}: finds the member, without torch", float(right), wanted="always", holds=right)
    yield Measure(f"{name}: resident memory", resident, "MB", wanted="under 800", holds=resident < 800)
    yield Measure(f"{name}: resident memory without mapped files", own, "MB")


def approximate(rows: int, place: Path, kind: str = "ivf-pq") -> Iterator[Measure]:
    """Approximate against exact search over the same matrix on disk."""
    matrix, queries = matrix_of(clustered(rows)).save(place), whole(QUERIES, 1)
    start = perf_counter()
    made = build(matrix, kind)
    took = perf_counter() - start
    searcher = Searcher(matrix, proposals=made)
    quick = partial(searcher.search, k=K, approximate=True)
    times = timed({"crow": quick, "exact": partial(searcher.search, k=K)}, queries)
    found = recall([quick(query).ids for query in queries], [searcher.search(query, K).ids for query in queries])
    name = f"approximate search ({kind}), {rows:,} x {DIM}"
    yield against(name, times, 10.0)
    yield Measure(f"{name}: recall@{K} of exact search", found, wanted="at least 0.95", holds=found >= 0.95)
    yield Measure(f"{name}: recall@{K} as measured by the build", made.recall)
    yield Measure(f"{name}: build", took, "s")


def whole(count: int, draw: int = 0) -> Vectors:
    """(count, DIM) of `clustered` in one array."""
    return np.concatenate(list(clustered(count, draw)))


def matrix_of(chunks: Iterable[Vectors]) -> Matrix:
    """A matrix in memory over rows whose ids are their numbers."""
    segments, first = [], 0
    for chunk in chunks:
        for rows in np.split(chunk.astype(np.float16), range(BLOCK, len(chunk), BLOCK)):
            ids = np.arange(first, first + len(rows), dtype=np.int64)
            segments.append(Segment("", rows, ids, np.zeros(len(rows), bool)))
            first += len(rows)
    return Matrix("bench", 1, DIM, tuple(segments))


def fill(rows: int, place: Path) -> None:
    """An index over pictures that never were, /0.jpg, /1.jpg and so on, with vectors of `clustered`."""
    with Index.create(place, whitening="none") as index:
        first = 0
        for chunk in clustered(rows):
            index.store.upsert(Row(f"/{first + i}.jpg", vector) for i, vector in enumerate(chunk))
            first += len(chunk)
        index.save_matrix()


def source() -> str:
    """The folder that this very crow is imported from."""
    return str(Path(__file__).parents[2])
