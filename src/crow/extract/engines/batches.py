"""Batches for a GPU: which pictures go together, and their way up, through memory that the copy engine reads by itself."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from crow.extract.engines import Pictures, TooLargeError

MOST = 128  # pictures in a batch
SIDES = 3  # batches on their way at a time
ALIGN = 256
PLACE = np.dtype("<u8, <i4, <i4, <i4, <i4")  # as `Picture` of kernels/first.cu


def canvases(pictures: Any, pixels: int) -> Iterator[list[int]]:
    """Batches of positions, of like sizes, at most so many pixels when each has the largest's room (at least one picture)."""
    sizes = [size_of(picture) for picture in pictures]
    batch: list[int] = []
    height = width = 0
    for i in sorted(range(len(sizes)), key=lambda i: (sizes[i], i)):
        height, width = max(height, sizes[i][0]), max(width, sizes[i][1])
        if batch and ((len(batch) + 1) * height * width > pixels or len(batch) == MOST):
            yield batch
            batch, (height, width) = [], sizes[i]
        batch.append(i)
    if batch:
        yield batch


def size_of(picture: Any) -> tuple[int, int]:
    """(height, width) of (h, w, 3) pixels here or (3, h, w) ones on the GPU."""
    height, width = picture.shape[1:] if isinstance(picture, torch.Tensor) else picture.shape[:2]
    return height, width


@contextmanager
def within_memory(pictures: Any) -> Iterator[None]:
    """TooLargeError, naming the largest of some pictures, where the GPU's memory is too small for what is done."""
    try:
        yield
    except torch.OutOfMemoryError:
        height, width = max(map(size_of, pictures), key=math.prod)
        raise TooLargeError(f"{width} x {height} pixels are too many for the GPU's memory: give a --size") from None


class Upload:
    """Pictures of a batch to the GPU, on a stream of its own while the batch before is at work."""

    def __init__(self, device: str) -> None:
        self.device = device
        self.stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._pinned: list[torch.Tensor] = [torch.empty(0, dtype=torch.uint8)] * SIDES
        self._there: list[torch.Tensor] = [torch.empty(0, dtype=torch.uint8)] * SIDES
        self._free: list[torch.cuda.Event | None] = [None] * SIDES  # when the GPU has read a side
        self._turn = 0

    def __call__(self, pictures: Pictures) -> torch.Tensor:
        """-> where each picture lies (address, steps in x, y and channel), on the GPU."""
        side = self._turn = (self._turn + 1) % SIDES
        head = PLACE.itemsize * len(pictures)
        starts = -(-head // ALIGN) * ALIGN + np.cumsum([0] + [_bytes(picture) for picture in pictures])
        self._grow(side, int(starts[-1]))
        if (event := self._free[side]) is not None:
            event.synchronize()
        pinned, there = self._pinned[side].numpy(), self._there[side]
        places = [_place(picture, there.data_ptr() + int(at)) for picture, at in zip(pictures, starts, strict=False)]
        pinned[:head] = np.array(places, PLACE).view(np.uint8)
        for picture, at in zip(pictures, starts, strict=False):
            if isinstance(picture, torch.Tensor):
                picture.record_stream(torch.cuda.current_stream())  # its memory is not used again before it was read
            else:
                pinned[at : at + picture.size].reshape(picture.shape)[:] = picture
        self._send(side, int(starts[-1]), small=all(isinstance(picture, torch.Tensor) for picture in pictures))
        return there[:head]

    def _send(self, side: int, size: int, small: bool) -> None:
        """Start the copy, make the work that follows wait for it, and note when that work has been asked for."""
        now = torch.cuda.current_stream()
        stream = now if small else self.stream  # a copy of some bytes is not worth a stream of its own
        if self._free[side] is None and not small:
            stream.wait_stream(now)
        with torch.cuda.stream(stream):
            self._there[side][:size].copy_(self._pinned[side][:size], non_blocking=True)
        if not small:
            now.wait_stream(stream)
        previous = (side - 1) % SIDES  # all that reads the side before has been asked for by now
        self._free[previous] = event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record(now)

    def _grow(self, side: int, size: int) -> None:
        if self._pinned[side].numel() < size:
            torch.cuda.synchronize()
            there = torch.empty(size, dtype=torch.uint8, device=self.device)
            self._pinned[side], self._there[side] = torch.empty(size, dtype=torch.uint8, pin_memory=True), there


def _bytes(picture: Any) -> int:
    """Room for a picture; one that is on the GPU already needs none."""
    return 0 if isinstance(picture, torch.Tensor) else -(-picture.size // ALIGN) * ALIGN


def _place(picture: Any, address: int) -> tuple[int, int, int, int, int]:
    """(address, steps to the next x, y, channel) of (h, w, 3) pixels here or (3, h, w) ones on the GPU, and nothing."""
    if isinstance(picture, torch.Tensor):
        return picture.data_ptr(), picture.stride(2), picture.stride(1), picture.stride(0), 0
    return address, 3, 3 * picture.shape[1], 1, 0
