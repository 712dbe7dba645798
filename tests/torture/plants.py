"""Defects planted on purpose (CROW_PLANT=name), to see that the campaign meant for each one catches it."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np


def skipped_fsync() -> None:
    """Commits are no longer brought to the disk. For `power`."""
    from crow.search.database import Database

    connect = Database._connect

    def hasty(self: Database) -> sqlite3.Connection:
        db = connect(self)
        db.execute("PRAGMA synchronous = OFF")
        return db

    Database._connect = hasty  # type: ignore[method-assign]
    os.fsync = lambda handle: None  # type: ignore[assignment]


def swallowed_exception() -> None:
    """A write that fails, because the disk is full, passes for one that was made. For `limits`."""
    from crow.search.database import Database
    from crow.search.store import StoreError

    transaction = Database.transaction

    @contextmanager
    def calm(self: Database) -> Iterator[None]:
        try:
            with transaction(self):
                yield
        except StoreError as error:
            if "full" not in str(error):
                raise

    Database.transaction = calm  # type: ignore[method-assign]


def nan() -> None:
    """Vectors are no longer looked at before they are stored. For `model`."""
    from crow.search import intake, sqlite

    def blind(path: str, vector: Any, dim: int | None) -> np.ndarray:
        return np.ascontiguousarray(vector, np.float32)

    sqlite.check_vector = blind  # type: ignore[attr-defined]
    intake.check_vector = blind  # type: ignore[attr-defined]


PLANTS: dict[str, Callable[[], None]] = {
    "skipped-fsync": skipped_fsync,
    "swallowed-exception": swallowed_exception,
    "nan": nan,
}


def plant(name: str | None) -> str:
    """Plant the defect of that name; returns it."""
    if name:
        PLANTS[name]()
    return name or ""
