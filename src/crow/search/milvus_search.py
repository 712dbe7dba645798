"""Searching on a Milvus server: the derived collection that an alias names, made anew and swapped while searches go on."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from crow.framework.reduce import Whitening
from crow.search import milvus_mirror as mirror
from crow.search.chance import SAMPLE, Background
from crow.search.derived import reduced
from crow.search.matrix import SearchError
from crow.search.milvus_kinds import KINDS, kind_for, measured
from crow.search.milvus_rows import COLUMNS
from crow.search.milvus_server import LEVELS, SPAN, within
from crow.search.nearest import SPARE, Found, best, cosines, unit_query
from crow.search.query import Filter
from crow.search.store import Ids, StoreError, Vectors

if TYPE_CHECKING:
    from crow.search.milvus import MilvusStore

MOST = 16_384  # results of one search: Milvus gives no more
WITHIN = ("hnsw", "diskann")
LOOK = 10.0  # seconds between two counts of the pictures


@dataclass(frozen=True)
class RemoteState:
    """What a search asks: one collection, and the whitening that its vectors went through."""

    remote: Remote
    collection: str
    whitening: Whitening | None

    def __len__(self) -> int:
        return self.remote.count(self.collection)

    def finder(self, wanted: Filter | None, approx: bool | None) -> Callable[[Vectors, int], Found]:
        """The search that answers under this filter."""
        from crow.search.milvus import filtered

        test = filtered(wanted.under, wanted.after, wanted.before) if wanted else ""
        return lambda query, k: self.remote.search(self, query, k, test, approx)

    def background(self) -> Background:
        """What unrelated pictures score here."""
        return self.remote.background(self)

    def vectors(self, ids: Ids) -> Vectors:
        """(n,) -> (n, d): the vectors that searches compare."""
        server = self.remote.store.server
        found: dict[int, Any] = {}
        for start in range(0, len(ids), 500):
            test = f"id in [{', '.join(map(str, ids[start : start + 500]))}]"
            found |= {int(r["id"]): r["vector"] for r in server.query(self.collection, test, ["id", "vector"])}
        missing = next((i for i in ids.tolist() if i not in found), None)
        if missing is not None:
            raise SearchError(f"no picture with the id {missing} in this index")
        dim = len(next(iter(found.values()), ()))
        return self.shown(np.array([found[i] for i in ids.tolist()], np.float32).reshape(len(ids), dim))

    def shown(self, vectors: Vectors) -> Vectors:
        """The vectors with the precision that every search compares them in, whatever keeps them."""
        unit = vectors if self.whitening else reduced(None, vectors)
        return unit.astype(np.float16).astype(np.float32)


class Remote:
    """What `Derived` is to a folder: searches, and the care of what is searched."""

    folder: Path | None = None
    kinds = tuple(KINDS)

    def __init__(self, store: MilvusStore) -> None:
        self.store, self.server = store, store.server
        self._counted: tuple[str, float, int] | None = None
        self._background: tuple[str, int, Background] | None = None
        self._known: dict[str, dict[str, Any]] = {}

    @contextmanager
    def reading(self) -> Iterator[RemoteState]:
        """What is searched now."""
        yield self.state()

    def state(self) -> RemoteState:
        """What is searched now."""
        return RemoteState(self, *self.store.searched())

    def count(self, collection: str) -> int:
        """How many rows can be searched; counted anew every few seconds."""
        now = time.monotonic()
        if (
            self._counted is None
            or self._counted[0] != collection
            or now - self._counted[1] > LOOK
            or not self._counted[2]
        ):
            made = self.server.pointed(self.store.place.name) is not None
            self._counted = collection, now, self.server.count(collection) if made else 0
        return self._counted[2]

    def search(self, state: RemoteState, query: Vectors, k: int, test: str, approx: bool | None) -> Found:
        """(d,) -> the k nearest of the rows that pass the test, scored as they are everywhere else."""
        known = self._how(state.collection)
        if approx is not None and approx == (known["kind"] == "flat"):
            asked = "approximate" if approx else "exact"
            raise SearchError(
                f"{self.store.address}: no {asked} search here, the index is {known['kind']} (crow index --approx)"
            )
        limit = min(k + SPARE, MOST)
        effort = {known["effort"]: known["value"]} if known.get("effort") else {}
        if known["kind"] in WITHIN:  # these look at so many rows, and no fewer than they are to return
            effort = {name: max(value, limit) for name, value in effort.items()}
        (found,) = self.server(
            "search",
            state.collection,
            data=[unit_query(query, len(query))],
            anns_field="vector",
            limit=limit,
            filter=test,
            output_fields=["id", "vector"],
            search_params={"metric_type": "COSINE", "params": effort},
            consistency_level=LEVELS[self.store.place.consistency],
        )
        if not found:
            return Found(np.empty(0, np.int64), np.empty(0))
        rows = state.shown(np.array([hit["entity"]["vector"] for hit in found], np.float32))
        ids = np.array([hit["entity"]["id"] for hit in found], np.int64)
        return best(ids, cosines(rows, unit_query(query, rows.shape[1])), k)

    def _how(self, collection: str) -> dict[str, Any]:
        """How a collection is searched."""
        if collection not in self._known:
            settings = self.store.about.settings(internal=True)
            self._known[collection] = settings.get(f"searched {collection}") or {"kind": "flat"}
        return self._known[collection]

    def background(self, state: RemoteState) -> Background:
        """What unrelated pictures score here; worked out again when a twentieth of the collection came or went."""
        count = len(state)
        key, before, known = self._background or ("", 0, None)
        if known is None or key != state.collection or abs(count - before) > count / 20:
            high = min(SPAN, int(SPAN * 1.3 * SAMPLE / max(count, 1)))  # ids are spread evenly: a range is a sample
            sample = self.server.query(state.collection, within(0, high), ["vector"])[:SAMPLE]
            rows = state.shown(np.array([row["vector"] for row in sample], np.float32))
            known = Background.from_scores((rows @ rows.T).astype(np.float64), count)
            self._background = state.collection, count, known
        return known

    # what is searched

    def wanted(self) -> tuple[str, str, Whitening | None]:
        """The collection that ought to be searched, its kind and its whitening."""
        settings = self.store.settings()
        whitening = Whitening.from_bytes(settings["whitening"]) if settings.get("whitening") else None
        kind = settings.get("approximate") or kind_for(len(self.store))
        name = f"{self.store.place.name}_{whitening.fingerprint if whitening else 'raw'}"
        return (name if kind == "flat" else f"{name}_{kind.replace('-', '_')}"), kind, whitening

    def save(self) -> list[str]:
        """Let what is searched be what the settings ask for: made beside the old one, filled, and swapped in."""
        collection, kind, whitening = self.wanted()
        store, alias = self.store, self.store.place.name
        now = self.server.pointed(alias)
        if now is None and whitening is None:
            return []
        if now is None and whitening is not None:
            store.make_raw(len(whitening.mean))
            now = store.raw
        notes: list[str] = []
        if collection != now:
            if collection != store.raw:
                notes = self._make(collection, kind, whitening)
            self.server.point(alias, collection)
            self._known.clear()
        if collection != store.raw and (collection != now or self.server.count(collection) != len(store)):
            mirror.converge(self.server, store.raw, collection, whitening)  # also what was written while it was filled
        if now not in (collection, store.raw, None):
            self.server.drop(str(now))
            store.about.forget(str(now))
        return notes

    def _make(self, collection: str, kind: str, whitening: Whitening | None) -> list[str]:
        """A filled collection, and what recall its index has."""
        count = len(self.store)
        dim = whitening.dim if whitening else int(self.store.settings()["dim"])
        made = KINDS[kind]
        self.server.make(collection, COLUMNS, dim, {"index_type": made.name, "params": made.params(count, dim)})
        data = whitening.to_bytes() if whitening else None
        self.store.about.searched(collection, {"kind": kind}, data)
        mirror.converge(self.server, self.store.raw, collection, whitening)
        if not made.effort:
            return []
        self.server("flush", collection)
        value, recall = measured(self.server, collection, made)
        self.store.about.searched(
            collection, {"kind": kind, "effort": made.effort, "value": value, "recall": recall}, data
        )
        return [f"searched by {made.name} over {count:,} pictures; measured recall@10 {recall:.3f}"]

    def lost(self) -> str:
        """Nothing: the server keeps its own log."""
        return ""

    def problems(self) -> Iterator[str]:
        """Where what is searched differs from what the store says."""
        collection, whitening = self.store.searched()
        if collection != self.store.raw and len(self.store):
            yield from mirror.problems(self.server, self.store.raw, collection, whitening)

    def repair(self) -> None:
        """Write anew what differs."""
        collection, whitening = self.store.searched()
        if collection != self.store.raw:
            for page in self.server.pages(collection, ["id", "pk"]):
                self.server("delete", collection, ids=[row["pk"] for row in page])
            mirror.converge(self.server, self.store.raw, collection, whitening)

    def forget(self) -> None:
        """Start the next search from what the server says."""
        self._counted = self._background = None
        self._known.clear()

    def build(self) -> list[str]:
        """After a sync there is nothing more to build: `save` did."""
        return []

    def refuse(self, kind: str) -> None:
        """Refuse a kind of index that is not known."""
        if kind not in KINDS:
            raise StoreError(f"no index named {kind!r} on Milvus; there are: {', '.join(KINDS)}")
