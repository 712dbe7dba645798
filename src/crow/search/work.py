"""A sync's work: what it is asked, what it tells, and the describer it needs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

from crow.search.pace import Pace
from crow.search.store import Failure, Stamp, Store, Vectors


class SyncError(ValueError):
    """A sync that stops before it forgets anything, with the reason."""


class Describes(Protocol):
    """What a sync and a search ask of a Describer."""

    recipe: Any
    precision: Any
    weights: Any

    def __call__(self, pictures: Any, box: Any = None) -> Vectors:
        """(n, K) unit rows."""

    def stream(self, items: Iterable[tuple[str, Any]]) -> Iterator[Any]:
        """A Described (key, vector, width, height, taken, reason) for each (key, source), in order."""


@dataclass(frozen=True)
class Report:
    """What a sync did, in pictures."""

    added: int = 0
    updated: int = 0
    moved: int = 0
    removed: int = 0
    unchanged: int = 0
    failed: int = 0  # tried now, and gave no vector
    skipped: int = 0  # failed before and not changed since, so not tried again
    missing: int = 0  # gone from the disk, kept in the index because it was asked for
    failures: tuple[Failure, ...] = ()
    notes: tuple[str, ...] = ()  # what a person should be told
    seconds: float = 0.0

    def __str__(self) -> str:
        names = ("added", "updated", "moved", "removed", "unchanged", "failed", "skipped", "missing")
        counts = {name: getattr(self, name) for name in names}
        always = ("added", "updated", "moved", "removed", "unchanged", "failed")
        return ", ".join(f"{count:,} {name}" for name, count in counts.items() if count or name in always)


class SyncStopped(KeyboardInterrupt):
    """Ctrl-C during a sync; `report` says what is kept."""

    def __init__(self, report: Report) -> None:
        super().__init__(f"stopped; kept: {report}")
        self.report = report


@dataclass
class Work:
    """A sync under way."""

    store: Store
    folders: frozenset[str]
    describer: Callable[[], Describes]
    pace: Pace
    tally: Counter[str] = field(default_factory=Counter)
    failures: list[Failure] = field(default_factory=list)
    known: dict[str, Stamp] = field(default_factory=dict)  # in these folders as the sync began

    def report(self) -> Report:
        """What was done up to now."""
        counts: dict[str, Any] = dict(self.tally)
        return Report(**counts, failures=tuple(self.failures), seconds=self.pace.elapsed())


def root_of(path: str, folders: Collection[str]) -> str | None:
    """The one of the folders that a path is or lies in."""
    while path not in folders:
        outer = path.rpartition("/")[0] or "/"
        if outer == path:
            return None
        path = outer
    return path


def inside(path: str, folders: Collection[str]) -> bool:
    """Whether a path is one of the folders or lies in one."""
    return root_of(path, folders) is not None
