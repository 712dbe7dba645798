"""Describers that take their time, or die."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tiny import Described, Tiny

from crow.recipe import RECIPES


class Slow(Tiny):
    """As slow as a small network on a core."""

    def stream(self, items: Iterable[tuple[str, Any]]) -> Iterator[Described]:
        for described in super().stream(items):
            time.sleep(0.05)
            yield described


class Other(Tiny):
    """Of another recipe than the index."""

    def __init__(self) -> None:
        super().__init__(RECIPES["gem"])


class Wrong(Tiny):
    """Has a fault that nobody foresaw."""

    def stream(self, items: Iterable[tuple[str, Any]]) -> Iterator[Described]:
        raise KeyError("lost")


class Still(Tiny):
    """Never ends."""

    def stream(self, items: Iterable[tuple[str, Any]]) -> Iterator[Described]:
        threading.Event().wait()
        return super().stream(items)


class Dying(Tiny):
    """Takes its whole process with it at the fifth picture, once in the cluster, so that its task is tried again."""

    def __init__(self, note: Path) -> None:
        super().__init__()
        self.note = note

    def stream(self, items: Iterable[tuple[str, Any]]) -> Iterator[Described]:
        for number, described in enumerate(super().stream(items)):
            if number == 5 and not self.note.exists():
                self.note.touch()
                os._exit(1)
            yield described


@dataclass(frozen=True)
class Fatal:
    """Makes them."""

    note: Path

    def __call__(self) -> Dying:
        return Dying(self.note)


class Watching(Tiny):
    """Writes down how much memory its process holds, every few pictures."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.file = folder / f"{os.getpid()}.memory"

    def stream(self, items: Iterable[tuple[str, Any]]) -> Iterator[Described]:
        for described in super().stream(items):
            if self.described % 5 == 0:
                pages = int(Path("/proc/self/statm").read_text().split()[1])
                with self.file.open("a") as out:
                    out.write(f"{self.described} {pages * os.sysconf('SC_PAGESIZE')}\n")
            yield described


@dataclass(frozen=True)
class Watched:
    """Makes them."""

    folder: Path

    def __call__(self) -> Watching:
        return Watching(self.folder)


class Counting:
    """A worker that describes nothing."""

    def __init__(self, cores: int | None = None) -> None:
        pass

    def __call__(self, pieces: list[Any]) -> dict[str, Any]:
        tally = dict.fromkeys(("updated", "failed", "unchanged", "skipped"), 0) | {"added": len(pieces)}
        return {"tally": tally, "node": "", "failures": [], "made": None, "rows": [], "failed": []}
