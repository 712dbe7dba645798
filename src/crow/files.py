"""Files that are there whole or not at all, also after a power cut."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A new file beside `path` to write to; it is on the disk before it takes its place, and gone where that failed."""
    half = path.with_name(f".{path.name}.{uuid4().hex}.half")
    try:
        yield half
        sync(half)
        half.replace(path)
        sync(path.parent)
    finally:
        half.unlink(missing_ok=True)


def sync(path: Path) -> None:
    """Bring a file, or the entries of a folder (new and renamed files), to the disk."""
    if os.name == "nt" and path.is_dir():  # Windows opens no folders, and keeps their entries by itself
        return
    handle = os.open(path, os.O_RDWR if os.name == "nt" else os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
