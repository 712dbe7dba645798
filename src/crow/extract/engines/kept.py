"""Kept: what was compiled once, in the cache folder, each file behind its own sha256; it can be deleted at any time."""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
from pathlib import Path


def kept(path: Path) -> bytes | None:
    """What was kept at `path`, or None where there is nothing whole."""
    with contextlib.suppress(OSError):
        data = path.read_bytes()
        if hashlib.sha256(data[32:]).digest() == data[:32]:
            return data[32:]
    return None


def keep(data: bytes, path: Path) -> None:
    """Write it whole or not at all; a cache that cannot be written is done without."""
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, part = tempfile.mkstemp(dir=path.parent)
        try:
            with os.fdopen(handle, "wb") as file:
                file.writelines((hashlib.sha256(data).digest(), data))
            Path(part).replace(path)
        finally:
            Path(part).unlink(missing_ok=True)
