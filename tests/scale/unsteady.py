"""Describers that take their time, or die."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tiny import Described, Tiny


class Slow(Tiny):
    """As slow as a small network on a core."""

    def stream(self, items: Iterable[tuple[str, Any]]) -> Iterator[Described]:
        for described in super().stream(items):
            time.sleep(0.05)
            yield described


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
