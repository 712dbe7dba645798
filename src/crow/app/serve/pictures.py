"""The pictures of the index as they are shown: read only if they are the bytes that were indexed, decoded apart, kept."""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections import OrderedDict
from pathlib import Path
from typing import Any

from crow.app.serve.decode import Decoder
from crow.app.serve.problems import Problem
from crow.extract.formats import MAX_PIXELS, RAW_EXTENSIONS
from crow.extract.images import read
from crow.extract.picture import PictureError
from crow.search.store import Row

SIDES = {"thumbnail": 400, "image": 1600}  # pixels of the longer side: a dense row on a sharp screen; a full window
KEPT = 48 << 20  # bytes of JPEGs kept in memory; thumbnails stay on disk as well


class Pictures:
    """JPEGs of the index's pictures."""

    def __init__(self, decoder: Decoder, folder: Path | None, upright: bool) -> None:
        self.decoder, self.folder, self.upright = decoder, folder, upright
        self._kept: OrderedDict[tuple[str, int], bytes] = OrderedDict()
        self._size = 0
        self._coming: dict[tuple[str, int], asyncio.Task[bytes]] = {}

    async def jpeg(self, row: Row, what: str) -> bytes:
        """A picture of the index, upright, small; made once however many ask at a time."""
        key = (what, row.id)
        if key in self._kept:
            self._kept.move_to_end(key)
            return self._kept[key]
        if key not in self._coming:
            task = asyncio.create_task(self._make(row, what))
            self._coming[key] = task
            task.add_done_callback(lambda _: self._coming.pop(key, None))
        return self._keep(key, await asyncio.shield(self._coming[key]))

    async def pixels(self, row: Row, recipe: dict[str, Any], box: list[float] | None) -> tuple[dict[str, Any], bytes]:
        """A picture as the recipe's view wants it."""
        data = await asyncio.to_thread(bytes_of, row)
        return await self.decoder({**self._job("prepared", row), "recipe": recipe, "box": box}, data)

    def sweep(self, ids: list[int]) -> None:
        """Forget the thumbnails of pictures that are no longer in the index."""
        known = set(ids)
        for file in self.folder.glob("*/*.jpg") if self.folder else ():
            if not (file.stem.isdecimal() and int(file.stem) in known):
                file.unlink(missing_ok=True)

    async def _make(self, row: Row, what: str) -> bytes:
        file = self.folder / f"{row.id % 256:02x}" / f"{row.id}.jpg" if self.folder and what == "thumbnail" else None
        if file and (found := await asyncio.to_thread(_found, file)):
            return found
        data = await asyncio.to_thread(bytes_of, row)
        job = {**self._job("shown", row), "side": SIDES[what], "draft": True}
        _, jpeg = await self.decoder(job, data)
        if file:
            await asyncio.to_thread(_put, file, jpeg)
        return jpeg

    def _job(self, do: str, row: Row) -> dict[str, Any]:
        raw = Path(row.path).suffix.lower() in RAW_EXTENSIONS
        return {"do": do, "name": "picture", "raw": raw, "upright": self.upright, "pixels": MAX_PIXELS}

    def _keep(self, key: tuple[str, int], jpeg: bytes) -> bytes:
        if key not in self._kept:
            self._kept[key] = jpeg
            self._size += len(jpeg)
        while self._size > KEPT:
            self._size -= len(self._kept.popitem(last=False)[1])
        return jpeg


def bytes_of(row: Row) -> bytes:
    """The bytes of a row's file, if they are the ones that were indexed: a link put in its place leads nowhere."""
    try:
        info = Path(row.path).stat()
        data = read(row.path)
    except (PictureError, OSError, ValueError):
        raise Problem(404, "the file of this picture is no longer there") from None
    unchanged = (info.st_size, info.st_mtime_ns) == (row.size, row.mtime)
    if not unchanged and hashlib.sha256(data).digest() != row.sha256:
        raise Problem(404, "the file of this picture has changed since it was indexed; crow index brings it up to date")
    return data


def _found(file: Path) -> bytes | None:
    """A thumbnail that was kept, None where there is none or a power cut left only a part of it."""
    try:
        data = file.read_bytes()
    except OSError:
        return None
    return data if data.startswith(b"\xff\xd8") and data.endswith(b"\xff\xd9") else None


def _put(file: Path, data: bytes) -> None:
    """Keep a thumbnail on disk; where that cannot be, it is made again next time."""
    half = file.with_name(f"{file.name}.{os.getpid()}.half")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        half.write_bytes(data)
        half.replace(file)
    except OSError:
        half.unlink(missing_ok=True)
