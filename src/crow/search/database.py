"""The database under the store: connections, transactions, snapshots, schema versions. Knows nothing of pictures."""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, Self

from crow.search.disk import WriterLock, is_network
from crow.search.record import checksum_of
from crow.search.store import StoreError

FILE = "index.sqlite"
APPLICATION = 0x43726F57  # "CroW", so that another program's database is not taken for an index
PAGE = 16384  # bytes: seven rows of 512 floats; SQLite's own 4096 holds one and wastes half of the file
MIGRATIONS = [  # one script per schema version; append, never edit
    """
    CREATE TABLE state (generation INTEGER NOT NULL, next_id INTEGER NOT NULL);
    INSERT INTO state VALUES (0, 1);
    CREATE TABLE settings (name TEXT PRIMARY KEY, value NOT NULL) WITHOUT ROWID;
    CREATE TABLE images (
        id INTEGER PRIMARY KEY, path BLOB NOT NULL UNIQUE, size INTEGER NOT NULL, mtime INTEGER NOT NULL,
        sha256 BLOB NOT NULL, width INTEGER NOT NULL, height INTEGER NOT NULL, taken TEXT,
        generation INTEGER NOT NULL, checksum BLOB NOT NULL);
    CREATE INDEX images_taken ON images (taken);
    CREATE INDEX images_generation ON images (generation);
    CREATE TABLE vectors (id INTEGER PRIMARY KEY, vector BLOB NOT NULL);
    CREATE TABLE removed (id INTEGER PRIMARY KEY, generation INTEGER NOT NULL);
    CREATE INDEX removed_generation ON removed (generation);
    CREATE TABLE failures (path BLOB PRIMARY KEY, reason TEXT NOT NULL, size INTEGER NOT NULL,
        mtime INTEGER NOT NULL) WITHOUT ROWID;
    """,
    """
    CREATE TABLE kept (path BLOB PRIMARY KEY, reason TEXT NOT NULL, size INTEGER NOT NULL, mtime INTEGER NOT NULL,
        checksum BLOB NOT NULL) WITHOUT ROWID;
    INSERT INTO kept SELECT *, checksum(path, reason, size, mtime) FROM failures;
    DROP TABLE failures;
    ALTER TABLE kept RENAME TO failures;
    """,
]


class Database:
    """A folder with a SQLite file; any number of readers (one connection per thread), one writer."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._writing = WriterLock(folder / "writer.lock")
        self._local = threading.local()
        self._open: list[sqlite3.Connection] = []
        self._closed = False

    def close(self) -> None:
        """Let go of everything."""
        self._closed = True
        while self._open:
            self._open.pop().close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def generation(self) -> int:
        """Grows with every commit."""
        return self._state()[0]

    def _state(self) -> tuple[int, int]:
        """The generation, and the id that the next picture gets."""
        found = self._run("SELECT generation, next_id FROM state")
        if len(found) != 1 or not all(isinstance(number, int) for number in found[0]):
            raise self._damage("its generation cannot be read")
        generation, next_id = found[0]
        return generation, next_id

    def _damage(self, what: object) -> StoreError:
        line = " ".join(str(what).split())
        return StoreError(f"{self.folder}: the index is damaged ({line}); crow backup --salvage saves what can be read")

    @property
    def _db(self) -> sqlite3.Connection:
        """This thread's own connection."""
        if self._closed:
            raise StoreError(f"{self.folder}: this index was closed")
        if not hasattr(self._local, "db"):
            self._local.db = self._connect()
            self._local.depth = 0
            self._open.append(self._local.db)
        db: sqlite3.Connection = self._local.db
        return db

    def _connect(self) -> sqlite3.Connection:
        file = self.folder / FILE
        writable = os.access(self.folder, os.W_OK)
        log = self.folder / f"{FILE}-wal"
        still = not writable and not (log.exists() and log.stat().st_size)  # nobody can write: no locks are needed
        query = "mode=rwc" if writable else "mode=ro&immutable=1" if still else "mode=ro"
        with self._named():
            db = sqlite3.connect(
                f"{file.resolve().as_uri()}?{query}",
                uri=True,
                timeout=60,
                isolation_level=None,
                check_same_thread=False,
            )
            if writable:
                db.execute(f"PRAGMA page_size = {PAGE}")
                db.execute(f"PRAGMA journal_mode = {'DELETE' if is_network(self.folder) else 'WAL'}")
                db.execute("PRAGMA synchronous = FULL")
        return db

    @contextmanager
    def _named(self) -> Iterator[None]:
        """SQLite's errors as ours, with the index named."""
        try:
            yield
        except UnicodeDecodeError as error:  # sqlite3 could not read SQLite's own message, which quotes the schema
            raise self._damage("its schema is no text") from error
        except sqlite3.Error as error:
            code = getattr(error, "sqlite_errorname", "") or ""
            if "FULL" in code:
                raise StoreError(f"{self.folder}: the disk is full; what was committed before is kept") from error
            if code.startswith(("SQLITE_NOTADB", "SQLITE_CORRUPT")):
                raise self._damage(error) from error
            raise StoreError(f"{self.folder}: {' '.join(str(error).split())}") from error

    def _run(self, sql: str, values: Sequence[Any] = ()) -> list[Any]:
        with self._named():
            return self._db.execute(sql, values).fetchall()

    def _many(self, sql: str, values: Iterable[Sequence[Any]]) -> None:
        with self._named():
            self._db.executemany(sql, values)

    def writer(self) -> AbstractContextManager[None]:
        """Be the one writer for a while; StoreBusy names the other one."""
        return self._writing()

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Several writes as one commit: all of them or none."""
        db = self._db
        if db.in_transaction and self._local.depth:
            yield
            return
        assert not db.in_transaction, "a snapshot only reads"
        if not os.access(self.folder, os.W_OK):
            raise StoreError(f"{self.folder}: this index may only be read here")
        with self._writing():
            self._run("BEGIN IMMEDIATE")
            self._local.depth = 1
            try:
                yield
                self._run("UPDATE state SET generation = generation + 1")
                self._run("COMMIT")
            except BaseException:
                if db.in_transaction:
                    db.rollback()
                raise
            finally:
                self._local.depth = 0

    @contextmanager
    def snapshot(self) -> Iterator[None]:
        """Reads inside see one generation."""
        db = self._db
        if db.in_transaction:
            yield
            return
        self._run("BEGIN")
        try:
            yield
        finally:
            if db.in_transaction:
                db.rollback()

    def _migrate(self) -> None:
        """From whatever schema version is there to ours; a newer one is refused."""
        version, application = self._run("PRAGMA user_version")[0][0], self._run("PRAGMA application_id")[0][0]
        if version > len(MIGRATIONS):
            raise StoreError(
                f"{self.folder}: a newer crow wrote this index (schema {version}, known here: {len(MIGRATIONS)})"
            )
        if version and application != APPLICATION:
            raise StoreError(f"{self.folder}: {FILE} is not an index of crow")
        if version == len(MIGRATIONS):
            return
        with self._writing():
            self._db.create_function("checksum", -1, lambda *columns: checksum_of(columns), deterministic=True)
            for number in range(self._run("PRAGMA user_version")[0][0], len(MIGRATIONS)):
                steps = [f"PRAGMA application_id = {APPLICATION}", f"PRAGMA user_version = {number + 1}"]
                with self._named():
                    self._db.executescript(f"BEGIN IMMEDIATE; {MIGRATIONS[number]}; {'; '.join(steps)}; COMMIT")
