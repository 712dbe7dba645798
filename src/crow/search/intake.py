"""Intake: files become rows of the store, or failures with a reason, committed every few seconds."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from crow.search.pace import ticking
from crow.search.store import Failure, Row, StoreError, check_vector
from crow.search.work import Work

BUFFER = 1000  # rows in one commit at most


def take_in(work: Work, todo: list[str]) -> None:
    """Describe the files, committing every few seconds; whatever ends this, what was described is written first."""
    if not todo:
        return
    describer = work.describer()
    read: dict[str, tuple[int, int, bytes]] = {}
    rows: list[Row] = []
    failures: list[Failure] = []

    def write() -> None:
        batch, broken = rows[:], failures[:]
        if batch or broken:
            with work.store.transaction():
                work.store.upsert(batch)
                work.store.fail(broken)
            del rows[: len(batch)], failures[: len(broken)]
            updated = sum(row.path in work.known for row in batch)
            work.tally.update(added=len(batch) - updated, updated=updated, failed=len(broken))
            work.failures += broken
        work.pace.committed()

    work.pace.begin("describing", len(todo))
    try:
        for item in ticking(describer.stream(_sources(todo, read, failures))):
            if item is not None:
                taken(item, *read.pop(item.key), rows, failures)
            if work.pace.step(0 if item is None else 1) or len(rows) >= BUFFER:
                write()
    except StoreError:
        raise
    except BaseException:
        write()
        raise
    write()


def _sources(
    todo: Iterable[str], read: dict[str, tuple[int, int, bytes]], failures: list[Failure]
) -> Iterator[tuple[str, bytes]]:
    """Path and bytes of every file that can be read; the stamp is taken before the bytes, so no change is missed."""
    from crow.extract.formats import MAX_BYTES

    for path in todo:
        try:
            info = Path(path).stat()
            if info.st_size > MAX_BYTES:
                reason = f"too large: a file of more than {MAX_BYTES >> 30} GiB"
                failures.append(Failure(path, reason, info.st_size, info.st_mtime_ns))
                continue
            data = Path(path).read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            continue  # gone since the folder was read; the next sync sees it
        except OSError as error:
            failures.append(Failure(path, error.strerror or str(error)))
            continue
        read[path] = info.st_size, info.st_mtime_ns, hashlib.sha256(data).digest()
        yield path, data


def taken(item: Any, size: int, mtime: int, digest: bytes, rows: list[Row], failures: list[Failure]) -> None:
    """A described picture as a row, or as a failure with its reason."""
    reason = item.reason
    if reason is None:
        try:
            check_vector(item.key, item.vector, None)
        except StoreError as error:
            reason = str(error)
    if reason is None:
        rows.append(Row(item.key, item.vector, size, mtime, digest, item.width, item.height, item.taken))
    else:
        failures.append(Failure(item.key, reason.removeprefix(f"{item.key}: "), size, mtime))


def digest_of(path: str) -> bytes | None:
    """sha256 of a file's bytes, None where it cannot be read."""
    try:
        with Path(path).open("rb") as file:
            return hashlib.file_digest(file, "sha256").digest()
    except OSError:
        return None
