"""The store on a Milvus server, for collections that one machine cannot hold; any number of processes may write.

Beside the name in the address stand NAME_raw (every picture with its raw vector: the truth), NAME_about (settings,
failures) and, where vectors are whitened, a collection derived from it; NAME itself is an alias of what is searched.
Every write is an upsert by a key made from the path, and may be repeated; there is no commit over several of them.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from crow.framework.reduce import Whitening
from crow.search.about import About
from crow.search.milvus_mirror import reduced_entities
from crow.search.milvus_rows import COLUMNS, NAMES, entity, key_of, problem_of, row_of, stored_path
from crow.search.milvus_server import BATCH, SPAN, Place, Server, quoted, spans, within
from crow.search.store import Failure, Ids, Row, Stamp, StoreError, Vectors, check_vector

if TYPE_CHECKING:
    from crow.search.milvus_search import Remote

PART = 1 << 16  # pictures in one of `parts`
FLAT: dict[str, Any] = {"index_type": "FLAT", "params": {}}


class MilvusStore:
    """Pictures on a server."""

    shared = True

    def __init__(self, address: str | Path) -> None:
        self.reach = str(address)
        self.place = Place.of(str(address))
        self.address = str(self.place)
        self.server = Server(self.place)
        self.raw = f"{self.place.name}_raw"
        self.about = About(self.server, f"{self.place.name}_about")
        self._depth, self._written = 0, 0
        self._dim: int | None = None
        self._whitenings: dict[str, Whitening | None] = {self.raw: None}

    @classmethod
    def create(cls, address: str | Path, **settings: Any) -> Self:
        """A new store; one that is there already is an error."""
        store = cls(address)
        if store.about.whole():
            raise StoreError(f"{store.address}: is there already")
        if store.server.pointed(store.place.name) or store.server("has_collection", store.raw):
            raise StoreError(f"{store.address}: another program's collection has this name")
        store.about.make()
        store.configure(uuid=uuid.uuid4().hex, **settings)
        return store

    @classmethod
    def open(cls, address: str | Path) -> Self:
        """The store that is there."""
        store = cls(address)
        if not store.about.there():
            raise StoreError(f"{store.address}: no index is there")
        return store

    @classmethod
    def exists(cls, address: str | Path) -> bool:
        """Whether a store is there."""
        store = cls(address)
        try:
            return store.about.whole()
        finally:
            store.close()

    def searching(self) -> Remote:
        """What answers searches over this store: the server itself."""
        from crow.search.milvus_search import Remote

        return Remote(self)

    @property
    def generation(self) -> int:
        """Grows with every commit of any process: microseconds of the writer's clock."""
        self._written = max(self._written, self.about.generation())
        return self._written

    def settings(self) -> dict[str, Any]:
        """All settings; bytes stay bytes, everything else is JSON."""
        return self.about.settings()

    def configure(self, **settings: Any) -> None:
        """Write settings; setting `whitening` also sets `whitening_generation` to this commit's generation."""
        with self.transaction():
            if "whitening" in settings:
                settings = settings | {"whitening_generation": time.time_ns() // 1000}
            self.about.configure(settings)

    def writer(self) -> AbstractContextManager[None]:
        """Any number may write: upserts of the same picture by two processes end as one row."""
        return nullcontext()

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Several writes under one generation. Not atomic: what was cut off is made whole by writing again."""
        self._depth += 1
        try:
            yield
        finally:
            self._depth -= 1
        if not self._depth:
            self._written = max(self._written + 1, time.time_ns() // 1000)
            self.about.configure({"generation": self._written})

    def snapshot(self) -> AbstractContextManager[None]:
        """A server has none: every read sees what was acknowledged before it began."""
        return nullcontext()

    # writing

    def upsert(self, rows: Iterable[Row]) -> Ids:
        """Write pictures with their vectors, keyed by path (of two with one path the last counts); ids, in order."""
        rows = list({row.path: row for row in rows}.values())
        if not rows:
            return np.empty(0, np.int64)
        dim = self._ready(rows[0])
        checked = [replace(row, vector=check_vector(row.path, row.vector, dim)) for row in rows]
        with self.transaction():
            entities = [entity(row) for row in checked]
            for start in range(0, len(entities), BATCH):
                self.put(entities[start : start + BATCH])
            self.about.recovered([e["pk"] for e in entities])
        return np.array([e["id"] for e in entities], np.int64)

    def put(self, entities: list[dict[str, Any]]) -> None:
        """Write a batch to the raw vectors and to what is searched."""
        self.server("upsert", self.raw, entities)
        collection, whitening = self.searched()
        if collection != self.raw:
            self.server("upsert", collection, reduced_entities(entities, whitening))

    def _ready(self, first: Row) -> int:
        """The dimension of this store; the first picture decides it, and makes the collection."""
        if self._dim:
            return self._dim
        dim = self.settings().get("dim") or len(check_vector(first.path, first.vector, None))
        if not self._made():
            self.make_raw(dim)
        self._dim = int(dim)
        return self._dim

    def make_raw(self, dim: int) -> None:
        """The collection of raw vectors, which is what is searched until there is a whitening; the alias says that it is whole."""
        self.server.make(self.raw, COLUMNS, dim, FLAT, mapped=True)
        if not self.settings().get("dim"):
            self.configure(dim=dim)
        self.server.name(self.place.name, self.raw)

    def searched(self) -> tuple[str, Whitening | None]:
        """The collection that is searched now, and what its vectors were reduced with."""
        collection = self.server.pointed(self.place.name) or self.raw
        if collection not in self._whitenings:
            self._whitenings[collection] = self.about.whitening_of(collection)
        return collection, self._whitenings[collection]

    def move(self, rows: Iterable[Row]) -> None:
        """Change path, size and mtime of the pictures with these ids, the vectors stay."""
        rows = list({row.id: row for row in rows}.values())
        kept = {row.id: row for row in self.rows((r.id for r in rows), vectors=True) if row is not None}
        moving = [replace(kept[r.id], path=r.path, size=r.size, mtime=r.mtime) for r in rows if r.id in kept]
        with self.transaction():
            self.put([entity(row) for row in moving]) if moving else None
            self.about.recovered([key_of(row.path) for row in moving])
            self.remove({row.path for row in kept.values()} - {row.path for row in moving})

    def remove(self, paths: Iterable[str]) -> int:
        """Forget pictures and failures; how many pictures went."""
        keys = [key_of(path) for path in dict.fromkeys(paths)]
        if not keys:
            return 0
        gone = 0
        with self.transaction():
            for collection in {self.raw, self.searched()[0]} if self._made() else ():
                for start in range(0, len(keys), BATCH):
                    part = keys[start : start + BATCH]
                    gone += self.server.count(self.raw, _one_of("pk", part)) if collection == self.raw else 0
                    self.server("delete", collection, ids=part)
            self.about.recovered(keys)
        return gone

    def fail(self, failures: Iterable[Failure]) -> None:
        """Write failures; a picture that stood at such a path is forgotten."""
        failures = list({f.path: f for f in failures}.values())
        if failures:
            with self.transaction():
                self.remove(f.path for f in failures)
                self.about.fail(failures)

    # reading

    def _made(self) -> bool:
        return self.server.pointed(self.place.name) is not None

    def __len__(self) -> int:
        return self.server.count(self.raw) if self._made() else 0

    def get(self, paths: Iterable[str], vectors: bool = False) -> dict[str, Row]:
        """The pictures at these paths, without those that are not there."""
        found = self._one_by_one("pk", [key_of(path) for path in dict.fromkeys(paths)], vectors)
        return {row.path: row for row in found}

    def rows(self, ids: Iterable[int], vectors: bool = False) -> list[Row | None]:
        """The pictures with these ids, in order; None where one is gone."""
        wanted = [int(i) for i in ids]
        found = {row.id: row for row in self._one_by_one("id", wanted, vectors)}
        return [found.get(i) for i in wanted]

    def _one_by_one(self, column: str, values: Sequence[Any], vectors: bool) -> Iterator[Row]:
        columns = [*NAMES, "vector"] if vectors else NAMES
        for start in range(0, len(values) if self._made() else 0, BATCH):
            test = _one_of(column, values[start : start + BATCH])
            yield from map(row_of, self.server.query(self.raw, test, columns))

    def ids(self, under: str | None = None, after: str | None = None, before: str | None = None) -> Ids:
        """Rising ids: all, or those in a folder, or taken in after <= date < before."""
        test = filtered(under, after, before)
        pages = self.server.pages(self.raw, ["id"], test) if self._made() else iter(())
        return np.array([row["id"] for page in pages for row in page], np.int64)

    def vectors(self, ids: Ids | None = None) -> Vectors:
        """(n, K) raw vectors of these ids in their order, or of all by rising id."""
        dim = self.settings().get("dim") or 0
        if ids is None:
            parts = [part for _, part in self.chunks()]
            return np.concatenate(parts) if parts else np.empty((0, dim), np.float32)
        rows = self.rows(ids, vectors=True)
        if None in rows:
            raise StoreError(f"{self.address}: no picture has the id {ids[rows.index(None)]}")
        return np.array([row.vector for row in rows if row], np.float32).reshape(len(rows), dim)

    def chunks(self, rows: int = 8192, part: tuple[int, int] | None = None) -> Iterator[tuple[Ids, Vectors]]:
        """All ids and raw vectors by rising id, some rows at a time; or those with first <= id < last."""
        test = within(*part) if part else ""
        for page in self.server.pages(self.raw, ["id", "vector"], test, part or (0, SPAN)) if self._made() else ():
            if page:
                yield np.array([row["id"] for row in page], np.int64), np.array([r["vector"] for r in page], np.float32)

    def parts(self) -> list[tuple[int, int]]:
        """Ranges of ids that together hold everything: ids are spread evenly."""
        return list(spans(len(self), PART))

    def stamps(self) -> dict[str, Stamp]:
        """What every picture's file was when it was read."""
        pages = self.server.pages(self.raw, NAMES) if self._made() else iter(())
        found = (row_of(row) for page in pages for row in page)
        return {row.path: Stamp(row.id, row.size, row.mtime, row.sha256) for row in found}

    def failures(self, paths: Iterable[str] | None = None) -> dict[str, Failure]:
        """Every file that gave no vector; or those of these paths."""
        return self.about.failures(paths)

    def check(self) -> Iterator[tuple[str, str]]:
        """(path, problem) for every row that is not what was written; path "" for the store itself."""
        dim, seen = self.settings().get("dim"), 0
        for page in self.server.pages(self.raw, [*NAMES, "vector"]) if self._made() else ():
            seen += len(page)
            yield from (problem for row in page if (problem := problem_of(row, dim)))
        if seen != len(self):
            yield "", f"{len(self):,} pictures are counted, {seen:,} were read"

    def backup(self, target: str | Path) -> None:
        """Milvus has its own."""
        raise StoreError(f"{self.address}: back up with milvus-backup, or write the vectors out: crow export")

    def salvage(self, target: str | Path) -> Self:
        """Milvus has its own."""
        raise StoreError(
            f"{self.address}: a collection is restored with milvus-backup; crow verify --repair forgets damaged rows"
        )

    def close(self) -> None:
        """Let go of everything."""
        self.server.close()


def filtered(under: str | None, after: str | None, before: str | None) -> str:
    """The test for pictures in a folder, and taken in after <= date < before; "" for all."""
    tests = []
    if under is not None:
        folder = stored_path(under.rstrip("/"))
        tests += [f"path >= {quoted(folder + '/')}", f"path < {quoted(folder + '0')}"]  # "0" follows "/"
    tests += [f"taken >= {quoted(after)}"] if after is not None else []
    tests += ['taken > ""', f"taken < {quoted(before)}"] if before is not None else []
    return " and ".join(tests)


def _one_of(column: str, values: Sequence[Any]) -> str:
    return f"{column} in [{', '.join(quoted(v) if isinstance(v, str) else str(v) for v in values)}]"
