"""Convolution: 3 x 3, bias, ReLU and pooling as one kernel for Hopper GPUs, in bfloat16 or eight-bit floats."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from crow.extract.engines import EngineError
from crow.extract.engines.driver import Kernel, Launch, kernel, source, tensor_map
from crow.extract.engines.rewrite import WholeNumbers

TILE = 16  # places along each side of a tile
LINE = 128  # bytes of one place in shared memory
THREADS = 384  # one group of 128 that fetches, two that multiply
EIGHT = torch.float8_e4m3fn
LARGEST = 448.0  # of EIGHT


@dataclass(frozen=True)
class Convolution:
    """A convolution after the first: its kernels, by output channels of one tile, and what is laid before them."""

    kernels: dict[int, Kernel]
    weights: torch.Tensor  # (1, 9, out, in)
    scale_and_bias: torch.Tensor  # (out, 2)
    pool: bool
    outward: torch.dtype

    @property
    def outputs(self) -> int:
        """How many channels come out."""
        return int(self.weights.shape[2])

    def launch(self, x: torch.Tensor, y: torch.Tensor, table: torch.Tensor, tiles: int) -> Launch:
        """(n, h, w, c) -> (n, h', w', k), written into y; `table`: (n, 4) as `levels` gives it."""
        size, half = x.element_size(), 2 if self.pool else 1
        block = min(self.kernels, key=lambda block: _effort(tiles * self.outputs // block, block))
        inputs = tensor_map(x, (LINE // size, TILE, TILE + 2, 1))
        weights = tensor_map(self.weights, (LINE // size, block, 1, 1))
        outputs = tensor_map(y, (LINE // y.element_size(), TILE // half, TILE // 2 // half, 1))
        blocks = self.outputs // block
        counts = map(ctypes.c_int, (len(x), tiles * blocks, blocks, x.shape[3] * size // LINE))
        grid = (min(tiles * blocks, processors()), 1)
        run = self.kernels[block].launch
        return run(grid, THREADS, inputs, weights, outputs, self.scale_and_bias, table, *counts)


def _effort(tiles: int, block: int) -> float:
    """How long so many tiles take: rounds of all multiprocessors; half as many channels take more than half the time."""
    return -(-tiles // processors()) * (1.0 if block == 128 else 0.6)


@dataclass(frozen=True)
class Step:
    """One convolution of a VGG in numbers: what `plan` reads off the network."""

    weight: torch.Tensor  # (out, in, 3, 3)
    bias: torch.Tensor
    pool: bool


def plan(network: Any) -> tuple[list[Step], bool]:
    """The convolutions of a VGG whose first one takes whole numbers, and how its pools round; others are refused."""
    body = getattr(network, "body", None)
    parts: list[Any] = list(body) if isinstance(body, nn.Sequential) else []
    letters = "".join(map(_letter, parts))
    steps = [
        Step(part.weight.detach(), part.bias.detach(), letters[i + 2 : i + 3].lower() == "p")
        for i, part in enumerate(parts)
        if letters[i] == "c"
    ]
    first, *others = [tuple(step.weight.shape[:2]) for step in steps] or [()]
    fits = first == (64, 4) and all(ins % 64 == 0 and (outs % 128 == 0 or outs == ins == 64) for outs, ins in others)
    if not fits or not re.fullmatch("cr(crp?)+|cr(crP?)+", letters):
        raise EngineError(
            "engine cuda runs VGG16 and VGG19, cut after their first layer; engine torch runs any network"
        )
    return steps, "P" in letters


def _letter(part: Any) -> str:
    """What a part of a network is: c(onvolution), r(eLU), p(ool) that rounds down or P that rounds up; ? anything else."""
    if isinstance(part, nn.ReLU):
        return "r"
    if isinstance(part, nn.MaxPool2d):
        usual = (part.kernel_size, part.stride, part.padding, part.dilation) == (2, 2, 0, 1)
        return ("P" if part.ceil_mode else "p") if usual else "?"
    if isinstance(part, nn.Conv2d | WholeNumbers) and part.bias is not None and part.weight.shape[2:] == (3, 3):
        usual = (part.stride, part.padding, getattr(part, "dilation", (1, 1))) == ((1, 1), (1, 1), (1, 1))
        return "c" if usual else "?"
    return "?"


def in_bfloat16(steps: Sequence[Step], ceil: bool) -> list[Convolution]:
    """Convolutions that read and write bfloat16."""
    return [_laid(step, ceil, torch.bfloat16, torch.bfloat16) for step in steps]


def in_float8(steps: Sequence[Step], ceil: bool, ends: Sequence[float]) -> list[Convolution]:
    """The same in eight bits from the first of 128 inputs on, bfloat16 before and for the map; `ends` of the values before each."""
    made, inward, scale = [], torch.bfloat16, 1.0
    for at, step in enumerate(steps):
        last = at == len(steps) - 1
        outward = torch.bfloat16 if last or step.weight.shape[0] < 128 else EIGHT
        scale_out = ends[at + 1] / LARGEST * 2 if outward is EIGHT else 1.0  # room for pictures with larger values
        made.append(_laid(step, ceil, inward, outward, scale, scale_out))
        inward, scale = outward, scale_out
    return made


def _laid(
    step: Step, ceil: bool, inward: torch.dtype, outward: torch.dtype, scale: float = 1.0, scale_out: float = 1.0
) -> Convolution:
    """A convolution of values that are stored over `scale`, into values stored over `scale_out`."""
    outputs, inputs = step.weight.shape[:2]
    eights = (inward is EIGHT, outward is EIGHT)
    weight, own = step.weight.float().cpu(), torch.ones(outputs)
    if eights[0]:
        own = weight.abs().amax((1, 2, 3)).clamp(min=1e-12) / LARGEST
        weight = (weight / own[:, None, None, None])[:, as_written(inputs)]
    weights = weight.permute(2, 3, 0, 1).reshape(1, 9, outputs, inputs).to("cuda", inward).contiguous()
    numbers = torch.stack([own * scale / scale_out, step.bias.float().cpu() / scale_out], 1).cuda()
    kept = outputs == inputs == 64
    blocks = (64,) if kept else (128,) if any(eights) else (128, 64)
    kinds = {block: Kind(block, step.pool, ceil, *eights, kept) for block in blocks}
    kernels = {block: kernel(source_of(kind), "convolve", shared_bytes(kind)) for block, kind in kinds.items()}
    return Convolution(kernels, weights, numbers, step.pool, outward)


def as_written(channels: int) -> torch.Tensor:
    """(channels,): which channel stands at each place of the lines of eight-bit floats that the kernel writes."""
    at = torch.arange(channels)
    return at // 16 * 16 + at % 4 // 2 * 8 + at % 16 // 4 * 2 + at % 2


@dataclass(frozen=True)
class Kind:
    """What `kernels/convolution.cu` is compiled for."""

    block: int  # output channels of one tile
    pool: bool = False
    ceil: bool = False
    eight_in: bool = False
    eight_out: bool = False
    keep: bool = False  # all weights stay in shared memory: 64 channels in and out

    @property
    def stages(self) -> tuple[int, int]:
        """How many pieces of pictures and of weights are on their way at a time: what shared memory has room for."""
        return (3, 9) if self.keep else (2, 5) if self.block == 128 else (3, 8)


def shared_bytes(kind: Kind) -> int:
    """Shared memory of `convolve`: stages of pictures and weights, and lines on their way out."""
    a, b = kind.stages
    lines = kind.block * (1 if kind.eight_out else 2) // LINE
    return 1024 + a * (TILE + 2) * TILE * LINE + b * kind.block * LINE + 2 * lines * (32 if kind.pool else 128) * LINE


def source_of(kind: Kind) -> str:
    """`kernels/convolution.cu` for one kind of layer."""
    flags = {"BN": kind.block, "POOL": kind.pool, "CEIL": kind.ceil, "IN8": kind.eight_in, "OUT8": kind.eight_out}
    flags |= {"KEEP": kind.keep, "A_STAGES": kind.stages[0], "B_STAGES": kind.stages[1]}
    defines = "".join(f"#define {name} {int(value)}\n" for name, value in flags.items())
    return source("convolution", defines + product(kind.block, kind.eight_in))


def product(block: int, eight: bool) -> str:
    """The instruction that multiplies, with its many registers written out."""
    count = block // 2
    kind = f"m64n{block}k32.f32.e4m3.e4m3" if eight else f"m64n{block}k16.f32.bf16.bf16"
    registers = ", ".join(f"%{i}" for i in range(count))
    values = ", ".join(f'"+f"(d[{i}])' for i in range(count))
    rest = "1, 1" if eight else "1, 1, 0, 0"
    return (
        f"__device__ void product(float (&d)[{count}], u64 a, u64 b, int add) {{\n"
        f'    asm volatile("{{ .reg .pred p; setp.ne.b32 p, %{count + 2}, 0; wgmma.mma_async.sync.aligned.{kind} '
        f'{{{registers}}}, %{count}, %{count + 1}, p, {rest}; }}" : {values} : "l"(a), "l"(b), "r"(add));\n}}\n'
    )


def first_weights(weight: torch.Tensor) -> torch.Tensor:
    """(64, 4, 3, 3) of the first convolution -> (3 x 8, 32 lanes, 4) bfloat16, as `kernels/first.cu` holds them."""
    lane = torch.arange(32)
    inputs = torch.zeros(48, 64)
    inputs[:36] = weight.float().cpu().permute(2, 3, 1, 0).reshape(36, 64)  # (place, channel) by output
    step, block = torch.meshgrid(torch.arange(3), torch.arange(8), indexing="ij")
    column = lane // 4
    output = (16 * (column // 2) + 2 * block.reshape(-1, 1) + column % 2)[..., None]
    row = 16 * step.reshape(-1, 1, 1) + 2 * (lane % 4)[:, None] + torch.tensor([0, 1, 8, 9])
    return inputs[row, output.expand_as(row)].bfloat16()


def levels(
    sizes: Sequence[tuple[int, int]], pools: Sequence[bool], ceil: bool
) -> tuple[NDArray[np.int32], list[tuple[int, int]], list[int]]:
    """Per layer and picture (first tile, tiles across, height, width) of what goes in, and the canvas, and all tiles.

    Tiles reach one place beyond the border of what comes out, where the next layer must see zeros.
    """
    here = np.array(sizes, np.int32)
    tables, shapes, counts = [], [tuple(here.max(0).tolist())], []
    for pool in [*pools, False]:
        tiles = np.minimum((here + (pool and ceil)) // TILE + 1, -(-here.max(0) // TILE))
        ends = np.cumsum(tiles.prod(1))
        tables.append(np.column_stack([ends - tiles.prod(1), tiles[:, 1], here]))
        counts.append(int(ends[-1]))
        here = (here + ceil) // 2 if pool else here
        shapes.append(tuple(here.max(0).tolist()))
    if here.min() < 1:
        raise EngineError("a picture is too small for this network")
    return np.stack(tables).astype(np.int32), shapes, counts


@cache
def processors() -> int:
    """Multiprocessors of the GPU in use."""
    return int(torch.cuda.get_device_properties("cuda").multi_processor_count)
