"""The network behind the server: one thread, one picture after the other, whoever waits stands in line."""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from crow.app.serve.collection import Collection
from crow.app.serve.decode import Decoder
from crow.app.serve.explanation import Side, explain
from crow.app.serve.pictures import Pictures
from crow.app.serve.uploads import Line, Upload, Uploads

T = TypeVar("T")
Vector = NDArray[np.float32]
Box = tuple[float, ...] | None
KEPT = 512  # vectors of queries and explanations that are kept
log = logging.getLogger("crow.serve")


class Engine:
    """Vectors and explanations of what people ask with."""

    def __init__(
        self, collection: Collection, decoder: Decoder, pictures: Pictures, uploads: Uploads, line: Line, pixels: int
    ) -> None:
        self.collection, self.decoder, self.pictures = collection, decoder, pictures
        self.uploads, self.line, self.pixels = uploads, line, pixels
        self.ready = False
        self._thread = ThreadPoolExecutor(1, "crow-network")
        self._kept: OrderedDict[tuple[Any, ...], Any] = OrderedDict()

    async def warm(self) -> None:
        """Load the network before anybody waits for it."""
        try:
            await self._run(lambda: self.collection.index.describer(np.zeros((64, 64, 3), np.uint8)))
            self.ready = True
        except Exception as error:
            log.warning("searching by new pictures will not work: %s", " ".join(str(error).split()))

    def close(self) -> None:
        """Let the thread end."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def vector(self, q: str, box: Box, placed: bool = False) -> Vector:
        """The raw vector of a member or an upload, or of a box in it; members whole need no network, nor the line."""
        if not q.startswith("u") and box is None:
            row = await asyncio.to_thread(self.collection.row, int(q), True)
            assert row.vector is not None
            return row.vector
        return await self._once(("vector", q, box), lambda: self._vector(q, box, placed))

    async def explain(self, q: str, box: Box, result: int) -> dict[str, Any]:
        """Why a result matches a query."""
        key = ("explain", q, box, result, self.collection.index.store.settings().get("whitening_generation"))
        return await self._once(key, lambda: self._explain(q, box, result))

    async def look(self, data: bytes) -> tuple[dict[str, Any], bytes]:
        """An upload's facts, and how it is shown."""
        job = {"do": "shown", "side": 1600, "name": "the upload", "pixels": self.pixels, "draft": False}
        return await self.decoder({**job, "upright": self.collection.index.recipe.view.upright}, data)

    async def _vector(self, q: str, box: Box, placed: bool) -> Vector:
        async with nullcontext() if placed else self.line.place():
            pixels = (await self._side(q, box)).pixels
            async with self.line.turn():
                return (await self._run(lambda: self.collection.index.describer([pixels])))[0]

    async def _explain(self, q: str, box: Box, result: int) -> dict[str, Any]:
        async with self.line.place():
            sides = [await self._side(q, box), await self._side(str(result), None)]
            index = self.collection.index
            async with self.line.turn():
                return await self._run(lambda: explain(index.describer, index.whitening, *sides))

    async def _side(self, q: str, box: Box) -> Side:
        recipe = self.collection.index.recipe.to_dict()
        cut = list(box) if box else None
        if q.startswith("u"):
            upload: Upload = self.uploads.get(q)
            job = {"do": "prepared", "recipe": recipe, "box": cut, "name": "the upload", "pixels": self.pixels}
            facts, data = await self.decoder(job, upload.data)
        else:
            row = await asyncio.to_thread(self.collection.row, int(q))
            facts, data = await self.pictures.pixels(row, recipe, cut)
        whole = (0.0, 0.0, float(facts["width"]), float(facts["height"]))
        part = tuple(np.clip(box, 0, [*whole[2:], *whole[2:]])) if box else whole
        return Side(np.frombuffer(data, np.uint8).reshape(*facts["shape"], 3), part)

    async def _once(self, key: tuple[Any, ...], make: Callable[[], Any]) -> Any:
        """What was made before under this key, or what is made now."""
        if key in self._kept:
            self._kept.move_to_end(key)
            return self._kept[key]
        value = self._kept[key] = await make()
        while len(self._kept) > KEPT:
            self._kept.popitem(last=False)
        return value

    async def _run(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)


def upload_of(number: str, data: bytes, facts: dict[str, Any], jpeg: bytes) -> Upload:
    """An upload from what the decoder said of it."""
    return Upload(number, data, jpeg, facts["width"], facts["height"], facts["taken"])
