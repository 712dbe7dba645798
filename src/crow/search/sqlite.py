"""The store on one machine: SQLite in the folder NAME.crow. What is acknowledged is on the disk."""

from __future__ import annotations

import json
import os
import shutil
import uuid
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from crow.files import sync
from crow.search.database import FILE
from crow.search.reading import Reading
from crow.search.record import BATCH, RECORD, bytes_of, checksum_of, failure_record, problem_of, record_of, row_of
from crow.search.store import Failure, Ids, Row, StoreError, check_vector

if TYPE_CHECKING:
    from crow.search.derived import Derived


class SqliteStore(Reading):
    """The store on one machine."""

    shared = False

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.address = self.reach = str(folder)

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

    # writing

    def configure(self, **settings: Any) -> None:
        """Write settings; setting `whitening` also sets `whitening_generation` to this commit's generation."""
        with self.transaction():
            if "whitening" in settings:
                settings = settings | {"whitening_generation": self.generation + 1}
            plain = [(n, v if isinstance(v, bytes) else json.dumps(v)) for n, v in settings.items()]
            sql = "INSERT INTO settings VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET value = excluded.value"
            self._many(sql, plain)
            rows = self._run("SELECT name, value FROM settings WHERE name != 'checksum' ORDER BY name")
            self._many(sql, [("checksum", checksum_of(tuple(rows)))])

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
            self._many("INSERT OR REPLACE INTO failures VALUES (?, ?, ?, ?, ?)", map(failure_record, failures))

    # copies

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
