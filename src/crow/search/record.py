"""Rows as the columns of a table and back, with the checksum over all of them."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from hashlib import blake2b
from typing import Any

import numpy as np

from crow.search.store import Failure, Ids, Row, StoreError, Vectors, check_vector

BATCH = 500  # parameters in one statement
FIELDS = "id, path, size, mtime, sha256, width, height, taken"
RECORD = f"{FIELDS}, vector, checksum FROM images LEFT JOIN vectors USING (id)"
FAILURE = "path, reason, size, mtime, checksum FROM failures"


def batches(keys: Sequence[Any]) -> Iterator[Sequence[Any]]:
    """Keys, as many at a time as a statement takes."""
    return (keys[start : start + BATCH] for start in range(0, len(keys), BATCH))


def bytes_of(row: Row) -> bytes:
    """The vector as it is stored: float32, little-endian."""
    assert row.vector is not None
    return row.vector.astype("<f4").tobytes()


def record_of(row: Row, generation: int) -> tuple[Any, ...]:
    """A row as the columns of the table, its checksum over everything last."""
    plain = (os.fsencode(row.path), row.size, row.mtime, row.sha256, row.width, row.height, row.taken)
    return (row.id, *plain, generation, checksum_of(plain, bytes_of(row)))


def checksum_of(plain: tuple[Any, ...], vector: bytes = b"") -> bytes:
    """Eight bytes over every column and the vector."""
    return blake2b(repr(plain).encode() + vector, digest_size=8).digest()


def is_whole(record: Sequence[Any]) -> bool:
    """Whether FIELDS, vector and checksum fit together; in a damaged file a column may hold anything."""
    *plain, vector, checksum = record[1:]
    return isinstance(vector, bytes) and checksum_of(tuple(plain), vector) == checksum


def path_of(record: Sequence[Any]) -> str:
    """The path of a record that may be damaged, "" where none can be told."""
    return os.fsdecode(record[1]) if isinstance(record[1], bytes) else ""


def row_of(record: Sequence[Any]) -> Row:
    """A row from the columns FIELDS, and the vector where it was asked for."""
    number, path, size, mtime, sha256, width, height, taken, *vector = record
    data = np.frombuffer(vector[0], "<f4").astype(np.float32) if vector else None
    return Row(os.fsdecode(path), data, size, mtime, sha256, width, height, taken, number)


def problem_of(record: Sequence[Any], dim: int | None) -> tuple[str, str] | None:
    """What is wrong with a row as it was read back, if anything."""
    path, vector = path_of(record), record[-2]
    if vector is None:
        return path, "its vector is gone"
    if not is_whole(record):
        return path, "its row is not what was written (checksum)"
    try:
        check_vector(path, np.frombuffer(vector, "<f4"), dim)
    except StoreError as error:
        return path, str(error).removeprefix(f"{path}: ")
    return None


def failure_record(failure: Failure) -> tuple[Any, ...]:
    """A failure as the columns of its table, its checksum last."""
    plain = (os.fsencode(failure.path), printable(failure.reason), failure.size, failure.mtime)
    return (*plain, checksum_of(plain))


def failure_of(record: Sequence[Any]) -> Failure:
    """A failure from the columns FAILURE."""
    path, reason, size, mtime, _ = record
    return Failure(os.fsdecode(path), reason, size, mtime)


def failure_problem(record: Sequence[Any]) -> tuple[str, str] | None:
    """What is wrong with a failure as it was read back, if anything."""
    *plain, checksum = record
    if checksum_of(tuple(plain)) == checksum:
        return None
    return path_of(("", *plain)), "the reason why it failed is not what was written (checksum)"


def ids_of(rows: Sequence[Sequence[Any]]) -> Ids:
    """The first column."""
    return np.fromiter((row[0] for row in rows), np.int64, len(rows))


def matrix_of(rows: Sequence[Sequence[Any]], dim: int) -> Vectors:
    """(n, K) from (id, blob) rows."""
    wrong = next((row[0] for row in rows if len(row[1]) != 4 * dim), None)
    if wrong is not None:
        raise StoreError(f"the vector of the picture with the id {wrong} is damaged; crow verify --repair removes it")
    data = bytearray().join(row[1] for row in rows)
    return np.frombuffer(data, "<f4").astype(np.float32, copy=False).reshape(len(rows), dim)


def printable(text: str) -> str:
    """Text that any encoding can hold."""
    return text.encode("utf-8", "backslashreplace").decode()
