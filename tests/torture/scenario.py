"""A piece of work that is cut off in the middle, and the judge of what must then be there."""

from __future__ import annotations

from pathlib import Path
from random import Random

from torture.children import Ended, Say


class Scenario:
    """One kind of work in a folder; `disk` is the part of it that suffers."""

    def __init__(self, folder: Path, random: Random) -> None:
        self.folder, self.random = folder, random
        self.disk = folder / "disk"
        self.disk.mkdir(parents=True)

    @property
    def name(self) -> str:
        """For people."""
        return type(self).__name__.lower()

    def prepare(self) -> None:
        """Before every unit, in the parent."""

    def unit(self, say: Say) -> None:
        """A piece of work, in a child that may end anywhere."""
        raise NotImplementedError

    def judge(self, ended: Ended, disk: Path) -> None:
        """What is left of `disk` must be what `ended` was told, in a child."""
        raise NotImplementedError
