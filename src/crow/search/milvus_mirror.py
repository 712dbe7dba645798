"""The mirror: a derived collection on Milvus holds exactly the pictures of the raw one, each reduced; and what differs."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from crow.framework.reduce import Whitening
from crow.search.derived import reduced
from crow.search.milvus_rows import NAMES
from crow.search.milvus_server import BATCH, PAGE, Server, quoted, spans, within

APART = 1e-5  # float32 on two machines
THREADS = 4  # ranges at a time: a strong read mostly waits for the server's clock


def reduced_entities(entities: list[dict[str, Any]], whitening: Whitening | None) -> list[dict[str, Any]]:
    """The same rows with the vectors that searches compare."""
    if whitening is None or not entities:
        return entities
    vectors = whitening.apply(np.array([e["vector"] for e in entities], np.float32))
    return [e | {"vector": vector} for e, vector in zip(entities, vectors, strict=True)]


def converge(server: Server, raw: str, collection: str, whitening: Whitening | None) -> int:
    """Write what is missing or old in a derived collection, and delete what is too much; how many rows that was."""

    def at(span: tuple[int, int]) -> int:
        return _converge(server, raw, collection, whitening, within(*span))

    with ThreadPoolExecutor(THREADS, "crow-mirror") as threads:
        return sum(threads.map(at, spans(max(server.count(raw), server.count(collection)))))


def _converge(server: Server, raw: str, collection: str, whitening: Whitening | None, test: str) -> int:
    """One range of ids."""
    there, here = (
        {r["pk"]: r["checksum"] for r in server.query(c, test, ["pk", "checksum"])} for c in (raw, collection)
    )
    missing = {pk for pk, checksum in there.items() if here.get(pk) != checksum}
    surplus = [pk for pk in here if pk not in there]
    if surplus:
        server("delete", collection, ids=surplus)
    if len(missing) <= BATCH:
        test = f"pk in [{', '.join(map(quoted, missing))}]"
    rows = [row for row in server.query(raw, test, [*NAMES, "vector"]) if row["pk"] in missing] if missing else []
    plain = [{name: row[name] for name in (*NAMES, "vector")} for row in rows]
    for start in range(0, len(plain), BATCH):
        server("upsert", collection, reduced_entities(plain[start : start + BATCH], whitening))
    return len(missing) + len(surplus)


def problems(server: Server, raw: str, collection: str, whitening: Whitening | None) -> Iterator[str]:
    """Where a derived collection differs from the raw one; reads every row."""
    wrong = stale = 0
    for low, high in spans(server.count(raw), PAGE // 2):
        test = within(low, high)
        there, here = (
            {r["pk"]: r for r in server.query(c, test, ["pk", "checksum", "vector"])} for c in (raw, collection)
        )
        stale += sum(here.get(pk, {}).get("checksum") != r["checksum"] for pk, r in there.items()) + len(
            here.keys() - there
        )
        both = [pk for pk in there if pk in here]
        if both:
            expected = reduced(whitening, np.array([there[pk]["vector"] for pk in both], np.float32))
            found = np.array([here[pk]["vector"] for pk in both], np.float32)
            wrong += int((np.abs(expected - found) > APART).any(axis=1).sum())
    if stale:
        yield f"{stale:,} pictures of {collection} are not those of {raw}"
    if wrong:
        yield f"{wrong:,} rows of {collection} are not what the store holds"
