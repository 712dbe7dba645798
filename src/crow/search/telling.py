"""Telling other processes how far a sync is: a small file beside the store, there only while one runs."""

from __future__ import annotations

import json
import os
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

from crow.search.pace import Pace

FILE = "sync.json"
EVERY = 1.0  # seconds between two writings
STALE = 15.0  # seconds after which whoever wrote it is taken to be gone; a sync at work writes every second


class Telling:
    """Writes how far a sync is; where that cannot be written, nobody misses it."""

    def __init__(self, address: str) -> None:
        self._file = None if "://" in address else Path(address) / FILE
        self._due = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._file and self._due:
            with suppress(OSError):
                self._file.unlink(missing_ok=True)

    def __call__(self, pace: Pace) -> None:
        """Write it, at most once a second."""
        if self._file is None or time.monotonic() < self._due:
            return
        self._due = time.monotonic() + EVERY
        half = self._file.with_name(f".{FILE}.half")
        told = {"doing": pace.doing, "done": pace.done, "total": pace.total, "left": pace.left}
        with suppress(OSError):
            half.write_text(json.dumps(told))
            os.replace(half, self._file)  # noqa: PTH105


def told(address: str) -> dict[str, Any] | None:
    """What the process that syncs this index last wrote; None where none is at it."""
    file = Path(address) / FILE
    try:
        if time.time() - file.stat().st_mtime > STALE:
            return None
        told = json.loads(file.read_bytes())
        return {"doing": str(told["doing"]), **{name: told[name] for name in ("done", "total", "left")}}
    except (OSError, ValueError, KeyError, TypeError):
        return None
