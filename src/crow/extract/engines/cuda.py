"""The GPU engines: VGG on Hopper (H100, H200) with kernels of its own, in bfloat16 (exact) or eight-bit floats (fast).

Pictures of any sizes share a batch: each has a canvas as large as the largest needs, and what lies beyond its own
border is zero at every layer, as if it were alone (`kernels/common.cu`). So a vector never depends on its neighbours.
"""

from __future__ import annotations

import ctypes
import math
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from threading import Lock
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from crow.extract.engines import EngineError, Pictures
from crow.extract.engines.batches import Upload, canvases, size_of, within_memory
from crow.extract.engines.convolution import (
    Convolution,
    Step,
    first_weights,
    in_bfloat16,
    in_float8,
    levels,
    plan,
    processors,
)
from crow.extract.engines.driver import Launch, kernel, source, stream_now
from crow.extract.engines.int8 import balanced_by_table
from crow.extract.engines.rewrite import whole_numbers
from crow.extract.engines.sums import WIDTH, Summing, Sums, computes, weighed
from crow.framework.describe import describe
from crow.framework.reduce import Whitening
from crow.recipe import Pool, Recipe, Spatial

THREADS, BLOCKS = 256, 2  # of the first convolution, on each multiprocessor
LAYOUTS = 64  # batches of like sizes come again: so many are remembered


@dataclass(frozen=True)
class Layout:
    """A batch of certain sizes: where everything lies on the GPU, and what is launched for it."""

    sizes: NDArray[np.int32]  # (n, 4) of the map, as `levels` gives it
    tables: torch.Tensor  # (layers, n, 4) of the same on the GPU
    first: Launch  # the first convolution; its first argument says where the pictures are
    launches: list[Launch]  # the other convolutions
    map: torch.Tensor  # (n, H, W, K)
    sums: dict[tuple[Pool, Spatial], Summing]  # what sums the map, made when it is first asked for


class CudaEngine:
    """VGG on a Hopper GPU in bfloat16, by kernels of our own."""

    name, precision = "cuda", "exact"
    window, flights = 32, 2
    takes_tensors = True  # pictures may be (3, h, w) on the GPU already
    batch_pixels = 12 << 20  # of all canvases of a batch: some 3 GB in the first layers

    def __init__(self, network: nn.Module, device: str | None = None) -> None:
        if not usable(device):
            raise EngineError(f"engine {self.name} needs a Hopper GPU (H100, H200); engine torch runs anywhere")
        self.device = device or "cuda"
        self._lock = Lock()  # the spaces serve one batch at a time,
        self._last = torch.cuda.Event()  # type: ignore[no-untyped-call]  # also where threads have streams of their own
        with self.alone():
            rewritten, self.convolutions, self.ceil = self._convolutions(network)
            first: Any = rewritten.body[0]
            self._mean = (ctypes.c_int * 3)(*(round(m) for m in first.mean.flatten().tolist()))
            self._weights, self._bias = first_weights(first.weight).cuda(), first.bias.float().cuda()
            self._first, self._sums = kernel(source("first"), "first"), Sums()
            self._upload = Upload(self.device)
        self._spaces: dict[int, torch.Tensor] = {}
        self._layouts: OrderedDict[tuple[tuple[int, int], ...], Layout] = OrderedDict()

    def maps(self, pictures: Pictures) -> Iterator[torch.Tensor]:
        """The map (1, K, H, W) of each picture, in order."""
        for picture in pictures:
            with self.alone(), within_memory([picture]):
                y = _own(self.forward([picture]), 0)
            yield y

    def vectors(self, pictures: Pictures, recipe: Recipe, regional: Whitening | None = None) -> NDArray[np.float32]:
        """n pictures -> (n, K), in order."""
        order: list[int] = []
        parts: list[torch.Tensor] = []
        with self.alone(), within_memory(pictures):
            for batch in canvases(pictures, self.batch_pixels):
                done = self.forward([pictures[i] for i in batch])
                parts.append(_to_host(self.reduced(done, recipe, regional)))
                del done  # its buffers may have to go
                order += batch
            arrived = torch.cuda.Event()  # type: ignore[no-untyped-call]
            arrived.record()
        arrived.synchronize()  # meanwhile another thread's pictures may go in
        rows = [_finished(part.numpy(), recipe) for part in parts]
        result = np.empty((len(order), rows[0].shape[1]), np.float32)
        result[order] = np.concatenate(rows)
        return result

    def alone(self) -> ExitStack:
        """Alone, on the engine's device, without gradients."""
        stack = ExitStack()
        contexts = (self._lock, torch.cuda.device(self.device), torch.inference_mode(False), torch.no_grad())
        for context in contexts:
            stack.enter_context(context)
        self._last.wait()
        stack.callback(self._last.record)
        return stack

    def _convolutions(self, network: nn.Module) -> tuple[Any, list[Convolution], bool]:
        """The network that runs, its convolutions after the first, and how its pools round."""
        network = whole_numbers(network)
        steps, ceil = plan(network)
        return network, self._laid(steps[1:], ceil), ceil

    def _laid(self, steps: list[Step], ceil: bool) -> list[Convolution]:
        return in_bfloat16(steps, ceil)

    def forward(self, pictures: Pictures) -> Layout:
        """n pictures -> their layout, the map in it written."""
        layout = self._layout(tuple(size_of(picture) for picture in pictures))
        stream = stream_now()
        layout.first.give(0, self._upload(pictures))
        for launch in (layout.first, *layout.launches):
            launch(stream)
        return layout

    def _layout(self, sizes: tuple[tuple[int, int], ...]) -> Layout:
        """The layout of a batch, made or remembered."""
        if sizes not in self._layouts:
            made = self._laid_out(sizes)
            self._layouts[sizes] = made
            if len(self._layouts) > LAYOUTS:
                self._layouts.popitem(last=False)
        self._layouts.move_to_end(sizes)
        return self._layouts[sizes]

    def _laid_out(self, sizes: tuple[tuple[int, int], ...]) -> Layout:
        n, outputs = len(sizes), [(c.outputs, c.outward) for c in self.convolutions]
        table, shapes, counts = levels(sizes, [c.pool for c in self.convolutions], self.ceil)
        tables = torch.from_numpy(table).to(self.device)
        wanted = zip(shapes, [(64, torch.bfloat16), *outputs], strict=False)
        x, *values = self._places([((n, *canvas, channels), kind) for canvas, (channels, kind) in wanted])
        rows, columns, count, total = [ctypes.c_int(v) for v in (*shapes[0], n, counts[0])]
        grid = (min(counts[0], BLOCKS * processors()), 1)
        arguments = (self._mean, self._weights, self._bias, x, rows, columns, tables[0], count, total)
        first = self._first.launch(grid, THREADS, tables, *arguments)
        launches = [
            convolution.launch(before, after, tables[number], counts[number])
            for number, (convolution, before, after) in enumerate(
                zip(self.convolutions, [x, *values], values, strict=False)
            )
        ]
        return Layout(table[-1], tables, first, launches, values[-1], {})

    def reduced(self, done: Layout, recipe: Recipe, regional: Whitening | None) -> torch.Tensor:
        """(n, 2 K + 1) sums where the map can be summed where it lies, else (n, K) vectors."""
        if _fused(done, recipe):
            key = (recipe.pool, recipe.spatial)
            if key not in done.sums:
                done.sums[key] = self._sums.of(done.map, done.tables[-1], recipe)
            return done.sums[key]()
        return torch.cat([describe(_own(done, i), recipe, regional) for i in range(len(done.sizes))])

    def _places(self, wanted: list[tuple[tuple[int, ...], torch.dtype]]) -> list[torch.Tensor]:
        """The values of every layer, in three buffers that grow as they must: the first layer's, then by turns."""
        buffers = [0, *(1 + number % 2 for number in range(len(wanted) - 1))]
        sizes = [math.prod(shape) * kind.itemsize for shape, kind in wanted]
        for buffer, size in zip(buffers, sizes, strict=True):
            if buffer not in self._spaces or self._spaces[buffer].numel() < size:
                torch.cuda.current_stream().synchronize()  # the batch before may be at work in the old one,
                self._spaces.pop(buffer, None)  # whose memory the new one may need,
                self._layouts.clear()  # and where these lie
                self._spaces[buffer] = torch.empty(size, dtype=torch.uint8, device=self.device)
        return [
            self._spaces[buffer][:size].view(kind).view(shape)
            for buffer, size, (shape, kind) in zip(buffers, sizes, wanted, strict=True)
        ]


class CudaFp8Engine(CudaEngine):
    """The same in eight-bit floats, with the ranges of the table that crow ships: an identity of its own."""

    name, precision = "cuda-fp8", "fast"

    def _convolutions(self, network: nn.Module) -> tuple[Any, list[Convolution], bool]:
        network, self._ends = balanced_by_table(network, self.name)
        return super()._convolutions(network)

    def _laid(self, steps: list[Step], ceil: bool) -> list[Convolution]:
        return in_float8(steps, ceil, self._ends)


def usable(device: str | None = None) -> bool:
    """Whether the kernels of these engines run here."""
    if device == "cpu" or not torch.cuda.is_available():
        return False
    return torch.cuda.get_device_capability(device) == (9, 0)


def _fused(done: Layout, recipe: Recipe) -> bool:
    """Whether the map is summed where it lies; a side of one cell is left to `describe`, which says so where it must."""
    return computes(recipe) and done.map.shape[3] == WIDTH and bool(done.sizes[:, 2:].min() >= 2)


def _to_host(x: torch.Tensor) -> torch.Tensor:
    """A copy on the host, there when the stream has come so far."""
    return torch.empty(x.shape, dtype=x.dtype, pin_memory=True).copy_(x, non_blocking=True)


def _finished(rows: NDArray[np.float32], recipe: Recipe) -> NDArray[np.float32]:
    """Sums become vectors; vectors stay."""
    return weighed(rows, recipe) if rows.shape[1] == 2 * WIDTH + 1 else rows


def _own(done: Layout, at: int) -> torch.Tensor:
    """A picture's own part of the canvases, (1, K, H, W) float32."""
    _, _, height, width = done.sizes[at].tolist()
    return done.map[at : at + 1, :height, :width].permute(0, 3, 1, 2).float()
