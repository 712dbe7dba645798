"""Pace: when to commit, how far the work is, and how long it will still take; iterating without being held up."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

T = TypeVar("T")
COMMIT = 2.0  # seconds between commits; with a tick of 1 second nothing done is ever 5 seconds old and not yet kept
TICK = 1.0
SURE = 2.0  # seconds of work before an estimate is given


class Pace:
    """The time a piece of work takes; `progress` is called with it as it goes on."""

    def __init__(
        self, progress: Callable[[Pace], None] | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._progress, self._clock = progress, clock
        self._start = self._begun = self._commit = clock()
        self.doing, self.done, self.total = "", 0, 0

    def begin(self, doing: str, total: int) -> None:
        """The next piece of work; what was spent before (loading a network) does not count for its estimate."""
        self.doing, self.done, self.total = doing, 0, total
        self._begun = self._commit = self._clock()

    def step(self, count: int = 1) -> bool:
        """So much more is done; True when it is time to commit."""
        self.done += count
        if self._progress:
            self._progress(self)
        return self._clock() - self._commit >= COMMIT

    def committed(self) -> None:
        """A commit was made."""
        self._commit = self._clock()

    def elapsed(self) -> float:
        """Seconds since the work began."""
        return self._clock() - self._start

    @property
    def left(self) -> float | None:
        """Seconds this piece will still take, None while nobody can know."""
        spent = self._clock() - self._begun
        if not self.done or (spent < SURE and self.done < self.total):
            return None
        return spent / self.done * max(self.total - self.done, 0)


def ticking(items: Iterable[T], seconds: float = TICK) -> Iterator[T | None]:
    """The items as they come from a thread of their own, and None whenever none came for so long.

    So whoever iterates can commit in time however long an item takes, and Ctrl-C waits for no more than the one at work.
    """
    arrived: queue.Queue[Any] = queue.Queue(maxsize=256)
    stop, end = threading.Event(), object()

    def put(item: Any) -> None:
        while not stop.is_set():
            try:
                return arrived.put(item, timeout=seconds)
            except queue.Full:
                continue

    def work() -> None:
        last: Any = end
        try:
            for item in items:
                put((item,))
                if stop.is_set():
                    break
        except BaseException as error:
            last = error
        put(last)

    thread = threading.Thread(target=work, name="crow-ticking", daemon=True)
    thread.start()
    try:
        while True:
            try:
                item = arrived.get(timeout=seconds)
            except queue.Empty:
                yield None
                continue
            if item is end:
                return
            if isinstance(item, BaseException):
                raise item
            yield item[0]
    finally:
        stop.set()
        thread.join()  # a thread that is inside a network when Python ends would end it with a crash
