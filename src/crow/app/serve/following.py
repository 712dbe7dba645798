"""Following a sync that another process runs: what the store says, and who writes to it."""

from __future__ import annotations

import json
import os
import threading
import time
from pathlib import Path
from typing import Any

from crow.search.store import Store

QUIET = 10.0  # seconds without a commit after which nobody is taken to be writing; a sync commits every two


class Following:
    """How the index stands, read at most once a second however many ask."""

    def __init__(self, store: Store) -> None:
        self.store, self.failed = store, 0
        self._lock = threading.Lock()
        self._seen = store.generation
        self._changed = -QUIET
        self._read = 0.0
        self._last: dict[str, Any] | None = None

    def now(self) -> dict[str, Any]:
        """Counts, and whether the index is growing."""
        with self._lock:
            if self._last is None or time.monotonic() - self._read >= 1:
                self._last, self._read = self._look(), time.monotonic()
            return self._last

    def _look(self) -> dict[str, Any]:
        generation = self.store.generation
        if self._last is None or generation != self._seen:
            self._changed = time.monotonic() if self._last is not None else self._changed
            self._seen, self.failed = generation, len(self.store.failures())
        sync = progress(self.store)
        growing = sync is not None or time.monotonic() - self._changed < QUIET
        counts = {"pictures": len(self.store), "failed": self.failed, "generation": generation}
        return {**counts, "growing": growing, "sync": sync}


def progress(store: Store) -> dict[str, Any] | None:
    """What the process that syncs this index wrote about how far it is; None where none is at it."""
    file = Path(store.address) / "sync.json"
    try:
        told = json.loads(file.read_bytes())
        os.kill(int(told["process"]), 0)
        return {
            "doing": str(told["doing"]),
            "done": int(told["done"]),
            "total": int(told["total"]),
            "left": told["left"],
        }
    except PermissionError:
        return None
    except (OSError, ValueError, KeyError, TypeError):
        return None
