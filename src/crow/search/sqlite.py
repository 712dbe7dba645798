"""The store on one machine: SQLite in the folder NAME.crow. What is acknowledged is on the disk."""

from __future__ import annotations

import json
import os
import shutil
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from crow.files import sync
from crow.search.database import FILE, Database
from crow.search.record import (
    BATCH,
    RECORD,
    batches,
    bytes_of,
    checksum_of,
    ids_of,
    is_whole,
    matrix_of,
    path_of,
    printable,
    problem_of,
    record_of,
    row_of,
)
from crow.search.store import Changes, Failure, Ids, Row, Stamp, StoreError, Vectors, check_vector

if TYPE_CHECKING:
    from crow.search.derived import Derived

PART = 1 << 16  # ids in one of `parts`
DAMAGED_SETTINGS = "the settings (recipe, whitening, ...) are not what was written (checksum)"
OUT_OF_ORDER = "the rows of the database are out of order"


class SqliteStore(Database):
    """The store on one machine."""

    shared = False

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.address = self.reach = str(folder)
        self._known: tuple[int, dict[str, Any]] = (-1, {})  # the settings of a generation

    @classmethod
    def create(cls, address: str | Path, **settings: Any) -> Self:
        """A new store, whole or not at all: it is made beside its place and renamed into it."""
        folder = Path(address)
        if folder.exists():
            raise StoreError(f"{folder}: is there already")
        half = folder.with_name(f".{folder.name}.{os.getpid()}.half")
        missing = [parent for parent in folder.parents if not parent.exists()]
        shutil.rmtree(half, ignore_errors=True)
        try:
            half.mkdir(parents=True)
            with cls(half) as store:
                store._migrate()
                store.configure(uuid=uuid.uuid4().hex, **settings)
            sync(half)
            half.rename(folder)
        except OSError as error:
            shutil.rmtree(half, ignore_errors=True)
            raise StoreError(f"{folder}: cannot be made ({error.strerror})") from None
        for made in (folder, *missing):
            sync(made.parent)
        return cls.open(folder)

    @classmethod
    def open(cls, address: str | Path) -> Self:
        """The store that is there, brought to this version's schema when an older one wrote it."""
        folder = Path(address)
        if not (folder / FILE).is_file():
            raise StoreError(f"{folder}: no index is there")
        store = cls(folder)
        try:
            store._migrate()
        except BaseException:
            store.close()
            raise
        return store

    @classmethod
    def exists(cls, address: str | Path) -> bool:
        """Whether something stands there."""
        return Path(address).exists()

    def searching(self) -> Derived:
        """What answers searches over this store: a matrix beside it."""
        from crow.search.derived import Derived

        return Derived(self)

    # settings

    def settings(self) -> dict[str, Any]:
        """All settings; bytes stay bytes, everything else is JSON."""
        with self.snapshot():
            now = self.generation
            if self._local.depth:  # what this transaction has written so far
                return self._read_settings(checked=False)
            if self._known[0] != now:  # a whitening takes long to compare: once for each generation
                self._known = now, self._read_settings(checked=True)
            return dict(self._known[1])

    def _read_settings(self, checked: bool) -> dict[str, Any]:
        rows = self._run("SELECT name, value FROM settings WHERE name != 'checksum' ORDER BY name")
        written = self._run("SELECT value FROM settings WHERE name = 'checksum'")
        if checked and written and written[0][0] != checksum_of(tuple(rows), b""):
            raise StoreError(f"{self.folder}: {DAMAGED_SETTINGS}; index the pictures anew")
        try:
            return {name: value if isinstance(value, bytes) else json.loads(value) for name, value in rows}
        except ValueError as error:
            raise StoreError(f"{self.folder}: its settings are damaged ({error})") from None

    def configure(self, **settings: Any) -> None:
        """Write settings; setting `whitening` also sets `whitening_generation` to this commit's generation."""
        with self.transaction():
            if "whitening" in settings:
                settings = settings | {"whitening_generation": self.generation + 1}
            plain = [(n, v if isinstance(v, bytes) else json.dumps(v)) for n, v in settings.items()]
            sql = "INSERT INTO settings VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET value = excluded.value"
            self._many(sql, plain)
            rows = self._run("SELECT name, value FROM settings WHERE name != 'checksum' ORDER BY name")
            self._many(sql, [("checksum", checksum_of(tuple(rows), b""))])

    # writing

    def upsert(self, rows: Iterable[Row]) -> Ids:
        """Write pictures with their vectors, keyed by path (of two with one path the last counts); new ids, in order."""
        rows = list({row.path: row for row in rows}.values())
        if not rows:
            return np.empty(0, np.int64)
        with self.transaction():
            generation, first = self._state()
            dim = self.settings().get("dim")
            if dim is None:
                dim = len(check_vector(rows[0].path, rows[0].vector, None))
                self.configure(dim=dim)
            checked = [replace(r, vector=check_vector(r.path, r.vector, dim), id=first + i) for i, r in enumerate(rows)]
            self.remove(row.path for row in rows)
            places = ", ".join("?" * 10)
            self._many(f"INSERT INTO images VALUES ({places})", (record_of(row, generation + 1) for row in checked))
            self._many("INSERT INTO vectors VALUES (?, ?)", ((row.id, bytes_of(row)) for row in checked))
            self._run("UPDATE state SET next_id = ?", (first + len(checked),))
        return np.arange(first, first + len(checked), dtype=np.int64)

    def move(self, rows: Iterable[Row]) -> None:
        """Change path, size and mtime of the pictures with these ids, the vectors stay."""
        rows = list({row.id: row for row in rows}.values())
        with self.transaction():
            kept = {row.id: row for row in self.rows((r.id for r in rows), vectors=True) if row is not None}
            moving = [replace(kept[r.id], path=r.path, size=r.size, mtime=r.mtime) for r in rows if r.id in kept]
            self.remove({row.path for row in moving} - {row.path for row in kept.values()})
            for row in moving:  # first out of each other's way: two files may have changed places
                self._run("UPDATE images SET path = ? WHERE id = ?", (b"\0moving %d" % row.id, row.id))
            for row in moving:
                _, path, size, mtime, *_, checksum = record_of(row, 0)
                sql = "UPDATE images SET path = ?, size = ?, mtime = ?, checksum = ? WHERE id = ?"
                self._run(sql, (path, size, mtime, checksum, row.id))
            self._many("DELETE FROM failures WHERE path = ?", ((os.fsencode(row.path),) for row in moving))

    def remove(self, paths: Iterable[str]) -> int:
        """Forget pictures and failures; how many pictures went."""
        keys = [(key,) for key in dict.fromkeys(map(os.fsencode, paths))]
        if not keys:
            return 0
        with self.transaction():
            before = self._db.total_changes
            now = "(SELECT generation + 1 FROM state)"
            self._many(f"INSERT INTO removed SELECT id, {now} FROM images WHERE path = ?", keys)
            gone = self._db.total_changes - before
            self._many("DELETE FROM vectors WHERE id = (SELECT id FROM images WHERE path = ?)", keys)
            self._many("DELETE FROM images WHERE path = ?", keys)
            self._many("DELETE FROM failures WHERE path = ?", keys)
        return gone

    def fail(self, failures: Iterable[Failure]) -> None:
        """Write failures; a picture that stood at such a path is forgotten."""
        failures = list(failures)
        if not failures:
            return
        with self.transaction():
            self.remove(f.path for f in failures)
            rows = ((os.fsencode(f.path), printable(f.reason), f.size, f.mtime) for f in failures)
            self._many("INSERT OR REPLACE INTO failures VALUES (?, ?, ?, ?)", rows)

    # reading

    def __len__(self) -> int:
        return int(self._run("SELECT count(*) FROM images")[0][0])

    def get(self, paths: Iterable[str], vectors: bool = False) -> dict[str, Row]:
        """The pictures at these paths, without those that are not there."""
        with self.snapshot():
            return {row.path: row for row in self._select("path", [os.fsencode(p) for p in paths], vectors)}

    def rows(self, ids: Iterable[int], vectors: bool = False) -> list[Row | None]:
        """The pictures with these ids, in order; None where one is gone."""
        wanted = [int(i) for i in ids]
        with self.snapshot():
            found = {row.id: row for row in self._select("id", wanted, vectors)}
            self._must_be_gone({i for i in wanted if i not in found})
        return [found.get(i) for i in wanted]

    def _must_be_gone(self, ids: set[int]) -> None:
        """Every id below the next one is a picture's or was removed; else a damaged tree hides its row."""
        next_id = self._state()[1] if ids else 0
        given = sorted(i for i in ids if 0 < i < next_id)
        for batch in batches(given):
            marks = ", ".join("?" * len(batch))
            if len(self._run(f"SELECT id FROM removed WHERE id IN ({marks})", batch)) < len(batch):
                raise self._damage("a row cannot be found")

    def _select(self, column: str, keys: Sequence[Any], vectors: bool) -> Iterator[Row]:
        for batch in batches(keys):
            marks = ", ".join("?" * len(batch))
            for record in self._run(f"SELECT {RECORD} WHERE {column} IN ({marks})", batch):
                row = row_of(self._sound(record)[:-1])
                yield row if vectors else replace(row, vector=None)

    def _sound(self, record: tuple[Any, ...]) -> tuple[Any, ...]:
        """A record whose checksum is right; a row that is not what was written must not become an answer."""
        if not is_whole(record):
            raise StoreError(f"{self.folder}: the row of {path_of(record)} is damaged; crow verify --repair removes it")
        return record

    def ids(self, under: str | None = None, after: str | None = None, before: str | None = None) -> Ids:
        """Rising ids: all, or those in a folder, or taken in after <= date < before.

        Damage in one place would hide a picture without a word, so the pictures themselves and the database's list of
        paths or dates are asked, and must agree.
        """
        tests: list[tuple[str, Any]] = []
        if under is not None:
            folder = os.fsencode(under).rstrip(b"/") + b"/"
            tests += [("path >= ?", folder), ("path < ?", folder[:-1] + b"0")]  # "0" follows "/"
        tests += [("taken >= ?", after)] if after is not None else []
        tests += [("taken < ?", before)] if before is not None else []
        if not tests:
            return ids_of(self._run("SELECT id FROM images ORDER BY id"))
        where, values = " AND ".join(test for test, _ in tests), [value for _, value in tests]
        with self.snapshot():
            found = self._run(f"SELECT id FROM images WHERE {where} ORDER BY id", values)
            again = self._run(f"SELECT id FROM images NOT INDEXED WHERE {where} ORDER BY id", values)
        if found != again:
            raise self._damage("a list of paths or dates does not agree with the pictures")
        return ids_of(found)

    def vectors(self, ids: Ids | None = None) -> Vectors:
        """(n, K) raw vectors of these ids in their order, or of all by rising id."""
        if ids is None:
            with self.snapshot():
                parts = [part for _, part in self.chunks()]
            return np.concatenate(parts) if parts else np.empty((0, self.settings().get("dim") or 0), np.float32)
        wanted = np.asarray(ids, np.int64)
        order = np.argsort(wanted, kind="stable")
        found: list[Any] = []
        with self.snapshot():
            for batch in batches(wanted[order].tolist()):
                marks = ", ".join("?" * len(batch))
                found += self._vectors(f"SELECT {RECORD} WHERE id IN ({marks}) ORDER BY id", batch)
            dim = self.settings().get("dim") or 0
        known, data = ids_of(found), matrix_of(found, dim)
        missing = ~np.isin(wanted, known)
        if missing.any():
            raise StoreError(f"{self.folder}: no picture has the id {wanted[missing.argmax()]}")
        return data[np.searchsorted(known, wanted)]

    def chunks(self, rows: int = 8192, part: tuple[int, int] | None = None) -> Iterator[tuple[Ids, Vectors]]:
        """All ids and raw vectors by rising id, some rows at a time; or those with first <= id < last."""
        first, end = part or (0, 1 << 62)
        dim, last, before, seen = self.settings().get("dim") or 0, first - 1, self._state(), 0
        sql = f"SELECT {RECORD} WHERE id > ? AND id < ? ORDER BY id LIMIT ?"
        while found := self._vectors(sql, (last, end, rows)):
            ids = ids_of(found)
            if ids[0] <= last or not (np.diff(ids) > 0).all():  # it might be read for ever
                raise self._damage(OUT_OF_ORDER)
            last, seen = int(ids[-1]), seen + len(ids)
            yield ids, matrix_of(found, dim)
        if part is None and seen != len(self) and before == self._state():  # a way to some of them is lost
            raise self._damage(OUT_OF_ORDER)

    def parts(self) -> list[tuple[int, int]]:
        """Ranges of ids that together hold everything."""
        return [(first, first + PART) for first in range(1, self._state()[1], PART)]

    def _vectors(self, sql: str, values: Sequence[Any]) -> list[tuple[int, bytes]]:
        """(id, vector) of the records that a query finds, each whole."""
        return [(record[0], record[-2]) for record in map(self._sound, self._run(sql, values))]

    def stamps(self) -> dict[str, Stamp]:
        """What every picture's file was when it was read."""
        rows = self._run("SELECT path, id, size, mtime, sha256 FROM images")
        return {os.fsdecode(path): Stamp(*rest) for path, *rest in rows}

    def failures(self, paths: Iterable[str] | None = None) -> dict[str, Failure]:
        """Every file that gave no vector; or those of these paths."""
        sql, rows = "SELECT path, reason, size, mtime FROM failures", []
        if paths is None:
            rows = self._run(f"{sql} ORDER BY path")
        for batch in batches([os.fsencode(path) for path in paths or ()]):
            rows += self._run(f"{sql} WHERE path IN ({', '.join('?' * len(batch))})", batch)
        return {os.fsdecode(path): Failure(os.fsdecode(path), *rest) for path, *rest in rows}

    def changes(self, since: int) -> Changes:
        """Which ids came and went after generation `since`."""
        with self.snapshot():
            added = self._run("SELECT id FROM images WHERE generation > ? ORDER BY id", (since,))
            removed = self._run("SELECT id FROM removed WHERE generation > ? ORDER BY id", (since,))
            return Changes(ids_of(added), ids_of(removed), self.generation)

    # care

    def check(self) -> Iterator[tuple[str, str]]:
        """(path, problem) for every row that is not what was written; path "" for the store itself."""
        with self.snapshot():
            try:
                answers = self._run("PRAGMA integrity_check")
            except StoreError as error:
                yield "", str(error)
                return
            yield from (("", str(answer)) for (answer,) in answers if answer != "ok")
            (orphans,) = self._run("SELECT count(*) FROM vectors WHERE id NOT IN (SELECT id FROM images)")[0]
            if orphans:
                yield "", f"{orphans} vectors belong to no picture"
            try:
                dim, last = self._read_settings(checked=True).get("dim"), 0
            except StoreError:
                dim, last = None, 0
                yield "", DAMAGED_SETTINGS
            sql = f"SELECT {RECORD} WHERE id > ? ORDER BY id LIMIT 4096"
            while found := self._run(sql, (last,)):
                if not isinstance(found[-1][0], int) or found[-1][0] <= last:
                    yield "", OUT_OF_ORDER
                    return
                last = found[-1][0]
                yield from (problem for record in found if (problem := problem_of(record, dim)))

    def salvage(self, target: str | Path) -> Self:
        """A new store with every row of this damaged one that can still be read whole."""
        settings = self.settings()
        new = type(self).create(target, **{name: value for name, value in settings.items() if name != "uuid"})
        try:
            last = self._state()[1]
        except StoreError:  # then as far as the vectors go
            last = (self._run("SELECT max(id) FROM vectors")[0][0] or 0) + 1
        sql = f"SELECT {RECORD} WHERE id >= ? AND id < ?"
        for start in range(0, last, BATCH):
            rows: list[Any] = []
            try:
                rows = self._run(sql, (start, start + BATCH))
            except StoreError:  # somewhere in these the file is damaged: one by one
                for number in range(start, start + BATCH):
                    with suppress(StoreError):
                        rows += self._run(sql, (number, number + 1))
            new.upsert(row_of(row[:-1]) for row in rows if problem_of(row, settings.get("dim")) is None)
        return new

    def backup(self, target: str | Path) -> None:
        """A consistent copy at another address, made while others read and write."""
        folder = Path(target)
        if folder.exists():
            raise StoreError(f"{folder}: is there already")
        half = folder.with_name(f".{folder.name}.{os.getpid()}.half")
        shutil.rmtree(half, ignore_errors=True)
        half.mkdir(parents=True)
        with SqliteStore(half) as copy:
            with self._named():
                self._db.backup(copy._db)
            copy.configure(uuid=uuid.uuid4().hex)
        sync(half)
        half.rename(folder)
        sync(folder.parent)
