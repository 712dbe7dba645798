"""Following a sync that another process runs: what the store says, and who writes to it."""

from __future__ import annotations

import threading
import time
from typing import Any

from crow.search.store import Store
from crow.search.telling import told

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
        sync = told(self.store.address)
        growing = sync is not None or time.monotonic() - self._changed < QUIET
        counts = {"pictures": len(self.store), "failed": self.failed, "generation": generation}
        return {**counts, "growing": growing, "sync": sync}
