"""Reading: what the database on one machine holds. Nothing is given out that is not what was written."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from crow.search.database import Database
from crow.search.record import (
    FAILURE,
    RECORD,
    batches,
    checksum_of,
    failure_of,
    failure_problem,
    ids_of,
    is_whole,
    matrix_of,
    path_of,
    problem_of,
    row_of,
)
from crow.search.store import Changes, Failure, Ids, Row, Stamp, StoreError, Vectors

PART = 1 << 16  # ids in one of `parts`
DAMAGED_SETTINGS = "the settings (recipe, whitening, ...) are not what was written (checksum)"
OUT_OF_ORDER = "the rows of the database are out of order"


class Reading(Database):
    """The store on one machine, as far as it reads."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._known: tuple[int, dict[str, Any]] = (-1, {})  # the settings of a generation

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
        if checked and (not written or written[0][0] != checksum_of(tuple(rows))):
            raise StoreError(f"{self.folder}: {DAMAGED_SETTINGS}; index the pictures anew")
        try:
            return {name: value if isinstance(value, bytes) else json.loads(value) for name, value in rows}
        except ValueError as error:
            raise StoreError(f"{self.folder}: its settings are damaged ({error})") from None

    # pictures

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
        records: list[Any] = self._run(f"SELECT {FAILURE} ORDER BY path") if paths is None else []
        for batch in batches([os.fsencode(path) for path in paths or ()]):
            marks = ", ".join("?" * len(batch))
            records += self._run(f"SELECT {FAILURE} WHERE path IN ({marks})", batch)
        if any(failure_problem(record) for record in records):
            raise self._damage("a reason why a file failed is not what was written")
        return {found.path: found for found in map(failure_of, records)}

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
            failed = self._run(f"SELECT {FAILURE}")
            yield from (problem for record in failed if (problem := failure_problem(record)))
