"""A worker of a job: pieces in, rows and failures kept, and a small sum of what was done. Knows nothing of Ray but its node."""

from __future__ import annotations

import hashlib
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice
from types import SimpleNamespace
from typing import Any

from crow.extract.picture import PictureError
from crow.extract.sources import Found, Piece, SourceError, pictures
from crow.recipe import Recipe
from crow.search.intake import taken
from crow.search.maker import Maker
from crow.search.pace import COMMIT
from crow.search.store import Failure, Row, Store, store_at
from crow.search.work import Describes

GROUP = 500  # pictures that the store is asked about at a time, and rows in one write at most
Known = dict[str, tuple[int, int, bool]]  # key -> size, time of change, whether it gave a vector


@dataclass
class OnServer:
    """A store that every worker reaches."""

    address: str
    _store: Store | None = None

    @property
    def store(self) -> Store:
        """Opened once in each worker."""
        if self._store is None:
            self._store = store_at(self.address).open(self.address)
        return self._store

    def known(self, keys: Sequence[str]) -> Known:
        """What the store knows of these keys."""
        found: Known = {path: (f.size, f.mtime, False) for path, f in self.store.failures(keys).items()}
        return found | {path: (row.size, row.mtime, True) for path, row in self.store.get(keys).items()}

    def keep(self, rows: list[Row], failures: list[Failure]) -> tuple[list[Row], list[Failure]]:
        """Write them; nothing is left to travel."""
        with self.store.transaction():
            self.store.upsert(rows)
            self.store.fail(failures)
        return [], []

    def claim(self, recipe: Recipe, describer: Describes) -> Any:
        """Bind the store to what the describer is, or refuse it by name."""
        Maker(self.store, recipe, describer, {}).claimed()
        return None


@dataclass
class Carried:
    """A store that only the driver reaches: what it knows comes along, and rows travel back."""

    reference: Any  # to what the store knew as the job began
    _known: Known | None = None

    def known(self, keys: Sequence[str]) -> Known:
        """What the store knew of these keys as the job began."""
        if self._known is None:
            import ray

            self._known = ray.get(self.reference)
        return {key: self._known[key] for key in keys if key in self._known}

    def keep(self, rows: list[Row], failures: list[Failure]) -> tuple[list[Row], list[Failure]]:
        """Nothing is written here."""
        return rows, failures

    def claim(self, recipe: Recipe, describer: Describes) -> Any:
        """What the driver has to check."""
        engine = str(getattr(getattr(describer, "engine", None), "name", ""))
        return SimpleNamespace(
            recipe=describer.recipe,
            weights=describer.weights,
            precision=describer.precision,
            engine=SimpleNamespace(name=engine),
            regional=getattr(describer, "regional", None),
        )


@dataclass
class Batch:
    """What a batch comes to."""

    tally: Counter[str] = field(default_factory=Counter)
    rows: list[Row] = field(default_factory=list)  # not yet kept
    failures: list[Failure] = field(default_factory=list)
    carried: tuple[list[Row], list[Failure]] = field(default_factory=lambda: ([], []))
    told: list[Failure] = field(default_factory=list)
    read: dict[str, tuple[int, int, bytes]] = field(default_factory=dict)
    known: Known = field(default_factory=dict)


class Worker:
    """Describes batches of pieces; the describer is only made when there is a picture to describe."""

    def __init__(
        self, recipe: Recipe, make: Callable[[], Describes], keeper: OnServer | Carried, cores: int | None = None
    ) -> None:
        if cores:
            os.environ["OMP_NUM_THREADS"] = str(cores)  # its share of the node, before any library counts the cores
        self.recipe, self.make, self.keeper = recipe, make, keeper
        self.describer: Describes | None = None
        self._made: Any = None

    def __call__(self, pieces: Sequence[Piece]) -> dict[str, Any]:
        """Do a batch; what was done before is passed over."""
        batch, cpu, wall = Batch(), time.process_time(), time.monotonic()
        found = chain.from_iterable(readable(piece) for piece in pieces)
        while group := list(islice(found, GROUP)):
            todo = self._todo(batch, group)
            if todo:
                self._describe(batch, todo)
            self._write(batch)
        batch.tally["cpu"] += round(1000 * (time.process_time() - cpu))  # milliseconds
        if str(getattr(getattr(self.describer, "engine", None), "device", "")).startswith("cuda"):
            batch.tally["gpu"] += round(1000 * (time.monotonic() - wall))
        rows, failed = batch.carried
        told = {"tally": batch.tally, "failures": batch.told, "node": _node()}
        return told | {"made": self._made if rows else None, "rows": rows, "failed": failed}

    def _todo(self, batch: Batch, group: list[Found]) -> list[Found]:
        """Those of a group that changed, or that the store does not know."""
        batch.known = self.keeper.known([found.key for found in group])
        todo = []
        for found in group:
            before = batch.known.get(found.key)
            if before is None or before[:2] != (found.size, found.mtime):
                todo.append(found)
            else:
                batch.tally["unchanged" if before[2] else "skipped"] += 1
        return todo

    def _describe(self, batch: Batch, todo: list[Found]) -> None:
        """Rows and failures of a group, written every few seconds."""
        if self.describer is None:
            self.describer = self.make()
            self._made = self.keeper.claim(self.recipe, self.describer)
        last = time.monotonic()
        for item in self.describer.stream(self._sources(batch, todo)):
            size, mtime, digest = batch.read.pop(item.key)
            taken(item, size, mtime, digest, batch.rows, batch.failures)
            if time.monotonic() - last > COMMIT:
                self._write(batch)
                last = time.monotonic()

    def _sources(self, batch: Batch, todo: list[Found]) -> Iterator[tuple[str, bytes]]:
        """Key and bytes of every picture that can be read."""
        for found in todo:
            try:
                data = found.read()
            except PictureError as error:
                batch.failures.append(Failure(found.key, error.reason, found.size, found.mtime))
                continue
            batch.tally["bytes"] += len(data)
            batch.read[found.key] = found.size, found.mtime, hashlib.sha256(data).digest()
            yield found.key, data

    def _write(self, batch: Batch) -> None:
        if not batch.rows and not batch.failures:
            return
        rows, failures = self.keeper.keep(batch.rows, batch.failures)
        updated = sum(batch.known.get(row.path, (0, 0, False))[2] for row in batch.rows)
        batch.tally.update(added=len(batch.rows) - updated, updated=updated, failed=len(batch.failures))
        batch.told += batch.failures[:20]
        batch.carried[0].extend(rows)
        batch.carried[1].extend(failures)
        batch.rows, batch.failures = [], []


def readable(piece: Piece) -> Iterator[Found]:
    """The pictures of a piece; a file that cannot be taken apart is one picture that cannot be read."""
    try:
        yield from pictures(piece)
    except (SourceError, OSError, ValueError, EOFError) as error:
        reason = str(error).removeprefix(f"{piece.place}: ") or type(error).__name__
        broken = Piece(piece.place, reason=reason)
        yield from pictures(broken)
    except Exception as error:  # tarfile and Parquet raise anything on broken bytes
        yield from pictures(Piece(piece.place, reason=f"cannot be read ({type(error).__name__}: {error})"))


def _node() -> str:
    try:
        import ray
    except ImportError:
        return ""
    return str(ray.get_runtime_context().get_node_id()) if ray.is_initialized() else ""
