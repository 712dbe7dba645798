"""The pictures people dropped, kept in memory for a while so that an address can name them; and the line they wait in."""

from __future__ import annotations

import asyncio
import hashlib
from collections import OrderedDict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from crow.app.serve.problems import Problem

KEPT = 256 << 20  # bytes of uploads that are kept


@dataclass(frozen=True)
class Upload:
    """A dropped picture: its bytes as they came, and how it is shown."""

    id: str  # "u" and the beginning of the sha256 of its bytes: the same picture is kept once
    data: bytes
    jpeg: bytes
    width: int
    height: int
    taken: str | None


class Uploads:
    """The last pictures that were dropped."""

    def __init__(self, kept: int = KEPT) -> None:
        self.kept, self.size = kept, 0
        self._all: OrderedDict[str, Upload] = OrderedDict()

    def __len__(self) -> int:
        return len(self._all)

    def __contains__(self, number: object) -> bool:
        return number in self._all

    def add(self, upload: Upload) -> None:
        """Keep it, and let the oldest ones go."""
        if upload.id in self._all:
            return self._all.move_to_end(upload.id)
        self._all[upload.id] = upload
        self.size += _weight(upload)
        while self.size > self.kept and len(self._all) > 1:
            _, old = self._all.popitem(last=False)
            self.size -= _weight(old)

    def get(self, number: str) -> Upload:
        """One that is still kept."""
        if number not in self._all:
            raise Problem(404, "this picture was dropped too long ago and is no longer kept; drop it again")
        self._all.move_to_end(number)
        return self._all[number]


class Line:
    """Who waits for the network; when it is full, one is told when to come back."""

    def __init__(self, places: int) -> None:
        self.places, self.waiting, self.seconds = places, 0, 1.0
        self._turn = asyncio.Lock()

    @asynccontextmanager
    async def place(self) -> AsyncIterator[None]:
        """A place in the line, or 503."""
        if self.waiting >= self.places:
            raise Problem(
                503, "too many pictures are waiting; try again soon", max(1, round(self.waiting * self.seconds))
            )
        self.waiting += 1
        try:
            yield
        finally:
            self.waiting -= 1

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """The one turn at the network, timed for the next estimate."""
        async with self._turn:
            begun = asyncio.get_running_loop().time()
            yield
            self.seconds += (asyncio.get_running_loop().time() - begun - self.seconds) / 8


def id_of(data: bytes) -> str:
    """The id that these bytes will have."""
    return "u" + hashlib.sha256(data).hexdigest()[:32]


def _weight(upload: Upload) -> int:
    return len(upload.data) + len(upload.jpeg)
