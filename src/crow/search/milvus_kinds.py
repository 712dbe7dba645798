"""The indexes of Milvus: which for how many pictures, and what of the exact answer they find."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from crow.search.derived import reduced
from crow.search.milvus_server import SPAN, Server, within
from crow.search.store import Ids, Vectors

RECALL = 0.965  # as in approximate.py: the least effort that reaches it on the sample is taken
ASKED = 200  # rows that the recall is measured on


@dataclass(frozen=True)
class Kind:
    """An index of Milvus: how it is made for n rows of d dimensions, and the efforts that a search may make."""

    name: str
    params: Callable[[int, int], dict[str, Any]]
    effort: str = ""
    efforts: tuple[int, ...] = ()


def _lists(n: int) -> int:
    return int(min(65536, max(128, 4 * round(n**0.5))))


def _parts(dim: int) -> int:
    """The largest number of codes up to 64, of two dimensions or more each, that divides d."""
    return max(m for m in range(1, min(64, max(dim // 2, 1)) + 1) if dim % m == 0)


KINDS: dict[str, Kind] = {
    "flat": Kind("FLAT", lambda n, dim: {}),
    "hnsw": Kind("HNSW", lambda n, dim: {"M": 16, "efConstruction": 200}, "ef", (100, 200, 400, 800, 1600, 3200)),
    "ivf-pq": Kind("IVF_PQ", lambda n, dim: {"nlist": _lists(n), "m": _parts(dim)}, "nprobe", (16, 32, 64, 128, 256)),
    "diskann": Kind("DISKANN", lambda n, dim: {}, "search_list", (100, 200, 400, 800)),
}
FROM = {
    "flat": 0,
    "hnsw": 1_000_000,
    "diskann": 20_000_000,
}  # rows from which a kind is taken: exact, in memory, on disk


def kind_for(count: int) -> str:
    """The kind for so many rows."""
    return max((least, kind) for kind, least in FROM.items() if least <= count)[1]


def measured(server: Server, collection: str, kind: Kind) -> tuple[int, float]:
    """The least effort that finds RECALL of the exact ten nearest of a sample, and what it finds."""
    queries, exact = _exact(server, collection)
    value, recall = 0, 0.0
    for value in kind.efforts:
        answers = server(
            "search", collection, data=list(queries), limit=11, output_fields=["id"], consistency_level="Strong",
            search_params={"metric_type": "COSINE", "params": {kind.effort: value}},
        )  # fmt: skip
        hits = [np.isin(e, [h["entity"]["id"] for h in a]).mean() for e, a in zip(exact, answers, strict=True)]
        recall = float(np.mean(hits))
        if recall >= RECALL:
            break
    return value, recall


def _exact(server: Server, collection: str) -> tuple[Vectors, list[Ids]]:
    """Some rows, and the ten nearest others of each by looking at all, a page at a time."""
    high = min(SPAN, int(SPAN * 1.3 * ASKED / max(server.count(collection), 1)))  # ids are spread evenly
    sample = server.query(collection, within(0, high), ["id", "vector"])[:ASKED]
    queries = reduced(None, np.array([row["vector"] for row in sample], np.float32))
    ids, scores = np.empty((len(queries), 0), np.int64), np.empty((len(queries), 0), np.float32)
    for page in server.pages(collection, ["id", "vector"]):
        if not page:
            continue
        rows = reduced(None, np.array([row["vector"] for row in page], np.float32))
        scores = np.hstack([scores, queries @ rows.T])
        ids = np.hstack([ids, np.tile([row["id"] for row in page], (len(queries), 1))])
        first = np.argsort(-scores, axis=1)[:, :11]
        ids, scores = np.take_along_axis(ids, first, 1), np.take_along_axis(scores, first, 1)
    own = [row["id"] for row in sample]
    return queries, [line[line != me][:10] for line, me in zip(ids, own, strict=True)]
