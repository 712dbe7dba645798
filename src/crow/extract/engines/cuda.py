"""The GPU engine: VGG on Hopper (H100, H200) with kernels of its own, in bfloat16 (exact) or eight-bit floats (fast).

Pictures of any sizes share a batch: each has a canvas as large as the largest needs, and what lies beyond its own
border is zero at every layer, as if it were alone (`kernels.cu`). So a vector never depends on its neighbours.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from crow.extract.engines import EngineError, Pictures
from crow.extract.engines.batches import Upload, canvases
from crow.extract.engines.driver import Kernel, kernel, tensor_map
from crow.extract.engines.rewrite import whole_numbers
from crow.framework.describe import describe
from crow.framework.normalize import normalize
from crow.framework.reduce import Whitening
from crow.framework.weight import OF_SHARES
from crow.recipe import Recipe

TILE = 16  # places along each side of a tile
LINE = 128  # bytes of one place in shared memory
WIDTH = 512  # channels that the kernel of CroW's sums is made for
CHUNK = 64  # places that one block of it sums


@dataclass(frozen=True)
class Layer:
    """A convolution after the first: its kernel, and what is laid before it."""

    run: Kernel
    weights: Any  # tensor map
    scale_and_bias: torch.Tensor  # (out, 2)
    inputs: int
    outputs: int
    block: int  # output channels of one tile
    pool: bool
    kept: tuple[torch.Tensor, ...]  # what the map points to
    inward: torch.dtype = torch.bfloat16
    outward: torch.dtype = torch.bfloat16


class CudaEngine:
    """VGG on a Hopper GPU; see `kernels.cu`."""

    name, precision = "cuda", "exact"
    window = 64
    batch_pixels = 12 << 20  # of all canvases of a batch: some 2 GB in the first layers

    def __init__(self, network: nn.Module, device: str | None = None) -> None:
        if not usable(device):
            raise EngineError(f"engine {self.name} needs a Hopper GPU (H100, H200); engine torch runs anywhere")
        self.device = device or "cuda"
        with torch.cuda.device(self.device):
            convolutions, self.ceil = _plan(whole_numbers(network))
            self.layers = self._layers(convolutions)
            first, _ = convolutions[0]
            self._mean = first.mean.flatten().tolist()
            self._weights, self._bias = first_weights(first)
            self._first = kernel(source(), "first")
            self._sums, self._together = kernel(source(), "sums"), kernel(source(), "together")
            self._upload = Upload(self.device)
        self._spaces: dict[int, torch.Tensor] = {}

    def maps(self, pictures: Pictures) -> Iterator[torch.Tensor]:
        """The map (1, K, H, W) of each picture, in order."""
        for picture in pictures:
            with torch.cuda.device(self.device):
                x, levels = self._forward([picture])
                yield _own(x, levels[-1], 0)

    def vectors(self, pictures: Pictures, recipe: Recipe, regional: Whitening | None = None) -> NDArray[np.float32]:
        """n pictures -> (n, K), in order."""
        rows: list[Any] = [None] * len(pictures)
        with torch.cuda.device(self.device):
            for batch in canvases(pictures, self.batch_pixels):
                x, levels = self._forward([pictures[i] for i in batch])
                if fused(recipe) and x.shape[3] == WIDTH and levels[-1, :, 2:].min() >= 2:
                    result = self._sum(x, recipe)
                    rows_of = [(result, at) for at in range(len(batch))]
                else:
                    rows_of = [(describe(_own(x, levels[-1], at), recipe, regional), 0) for at in range(len(batch))]
                for i, row in zip(batch, rows_of, strict=True):
                    rows[i] = row
            return _gathered(rows, recipe)

    def _layers(self, convolutions: list[tuple[Any, bool]]) -> list[Layer]:
        """Every convolution after the first, ready to run."""
        return [_layer(convolution, pool, self.ceil) for convolution, pool in convolutions[1:]]

    def _forward(self, pictures: Pictures) -> tuple[torch.Tensor, NDArray[np.int32]]:
        """n pictures -> (n, H, W, K) bfloat16 canvases, and per layer and picture (first tile, tiles across, height, width)."""
        sizes = [_size(picture) for picture in pictures]
        levels, shapes = _levels(sizes, [layer.pool for layer in self.layers], self.ceil)
        addresses, tables = self._upload(pictures, levels)
        self._tables, count = tables, ctypes.c_int(len(pictures))
        x = self._space(0, (len(pictures), *shapes[0], 64), torch.bfloat16)
        rows, columns = map(ctypes.c_int, shapes[0])
        mean = (ctypes.c_int * 3)(*(round(m) for m in self._mean))
        tiles = _tiles(levels[0], shapes[0])
        self._first(
            (min(tiles, 8 * _processors()), 1), 256,
            addresses, mean, self._weights, self._bias, x, rows, columns, tables[0], count, ctypes.c_int(tiles),
        )  # fmt: skip
        for number, layer in enumerate(self.layers):
            shape = shapes[number + 1]
            y = self._space(number % 2 + 1, (len(pictures), *shape, layer.outputs), layer.outward)
            self._convolve(layer, x, y, tables[number], count, _tiles(levels[number], x.shape[1:3]))
            x = y
        return x, levels

    def _convolve(
        self, layer: Layer, x: torch.Tensor, y: torch.Tensor, table: torch.Tensor, count: Any, tiles: int
    ) -> None:
        """(n, h, w, c) -> (n, h', w', k), in place of what was in y."""
        inputs = tensor_map(x, (LINE // x.element_size(), TILE, TILE + 2, 1))
        half = 2 if layer.pool else 1
        outputs = tensor_map(y, (LINE // y.element_size(), TILE // half, TILE // 2 // half, 1))
        blocks = layer.outputs // layer.block
        steps = layer.inputs * x.element_size() // LINE
        layer.run(
            (min(tiles * blocks, _processors()), 1), 384,
            inputs, layer.weights, outputs, layer.scale_and_bias, table, count,
            ctypes.c_int(tiles * blocks), ctypes.c_int(blocks), ctypes.c_int(steps),
        )  # fmt: skip

    def _sum(self, x: torch.Tensor, recipe: Recipe) -> torch.Tensor:
        """(n, H, W, K) canvases -> (n, 2 K + 1): weighted sums, shares of places that fire, sum of S' ^ a."""
        n, rows, columns, _ = x.shape
        pool, ceil = (2, int(recipe.pool.ceil)) if recipe.pool.kind == "max" else (1, 0)
        places = (-(-rows // pool)) * (-(-columns // pool))
        chunks = -(-places // CHUNK)
        partial = self._space(3, (n, chunks, 2 * WIDTH + 1), torch.float32)
        result = torch.empty((n, 2 * WIDTH + 1), device=x.device)
        numbers = [ctypes.c_int(v) for v in (pool, ceil)]
        weigh, a = recipe.spatial.kind == "response", recipe.spatial.a
        self._sums(
            (chunks, n), 256, x, ctypes.c_int(rows), ctypes.c_int(columns), self._tables[-1], *numbers,
            ctypes.c_int(weigh), ctypes.c_float(a), ctypes.c_float(1 / recipe.spatial.b), partial, ctypes.c_int(chunks),
        )  # fmt: skip
        largest = ctypes.c_int(np.isinf(a))
        self._together((n, 1), WIDTH, partial, ctypes.c_int(chunks), self._tables[-1], *numbers, largest, result)
        return result

    def _space(self, number: int, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """A tensor in one of the buffers, which grow as they must and are used again."""
        size = int(np.prod(shape)) * dtype.itemsize
        if number not in self._spaces or self._spaces[number].numel() < size:
            self._spaces[number] = torch.empty(size, dtype=torch.uint8, device=self.device)
        return self._spaces[number][:size].view(dtype).view(shape)


def usable(device: str | None = None) -> bool:
    """Whether the kernels of this engine run here."""
    if device == "cpu" or not torch.cuda.is_available():
        return False
    return torch.cuda.get_device_capability(device) == (9, 0)


def fused(recipe: Recipe) -> bool:
    """Whether the kernel of CroW's sums computes this recipe."""
    pools = recipe.pool.kind == "none" or (recipe.pool.kind, recipe.pool.size, recipe.pool.stride) == ("max", 2, 2)
    return pools and recipe.spatial.kind in ("uniform", "response") and recipe.channel.kind in OF_SHARES


def weighed(sums: NDArray[np.float32], recipe: Recipe) -> NDArray[np.float32]:
    """(n, 2 K + 1) of `_sum` -> (n, K): the norm of S' and the channel weights, then step 5."""
    v, q, norm = (torch.from_numpy(part) for part in np.split(sums, [WIDTH, 2 * WIDTH], axis=1))
    if recipe.spatial.kind == "response":
        length = norm if np.isinf(recipe.spatial.a) else norm ** (1 / recipe.spatial.a)
        v = v / torch.where(length > 0, length, 1) ** (1 / recipe.spatial.b)
    rows: NDArray[np.float32] = normalize((v * OF_SHARES[recipe.channel.kind](q, recipe.channel)).numpy(), recipe.norm)
    return rows


def _gathered(rows: list[Any], recipe: Recipe) -> NDArray[np.float32]:
    """(tensor on the GPU, row) of every picture -> (n, K) here; each tensor crosses once."""
    tensors = list({id(tensor): tensor for tensor, _ in rows}.values())
    here = {id(tensor): tensor.cpu().numpy() for tensor in tensors}
    done = {key: weighed(array, recipe) if array.shape[1] == 2 * WIDTH + 1 else array for key, array in here.items()}
    return np.stack([done[id(tensor)][row] for tensor, row in rows])


def _own(x: torch.Tensor, level: NDArray[np.int32], at: int) -> torch.Tensor:
    """A picture's own part of the canvases, (1, K, H, W) float32."""
    _, _, height, width = level[at].tolist()
    return x[at : at + 1, :height, :width].permute(0, 3, 1, 2).float()


def _size(picture: Any) -> tuple[int, int]:
    height, width = picture.shape[1:] if isinstance(picture, torch.Tensor) else picture.shape[:2]
    return height, width


def _plan(network: Any) -> tuple[list[tuple[Any, bool]], bool]:
    """The convolutions of a VGG, each with whether it is pooled, and how pools round; any other network is refused."""
    parts = [part for part in network.body if not isinstance(part, nn.ReLU)] if hasattr(network, "body") else []
    plan: list[tuple[Any, bool]] = []
    ceil = False
    for part in parts:
        if isinstance(part, nn.MaxPool2d) and plan:
            ceil = bool(part.ceil_mode)
            plan[-1] = (plan[-1][0], True)
        else:
            plan.append((part, False))
    shapes = [tuple(convolution.weight.shape) for convolution, _ in plan if hasattr(convolution, "weight")]
    fits = len(plan) > 1 and len(shapes) == len(plan) and shapes[0] == (64, 4, 3, 3) and not plan[0][1]
    if not fits or any(s[2:] != (3, 3) or s[1] % 64 or (s[0] % 128 and s[:2] != (64, 64)) for s in shapes[1:]):
        raise EngineError("engine cuda runs VGG16 and VGG19, after their first layer; engine torch runs any network")
    return plan, ceil


def _layer(convolution: nn.Conv2d, pool: bool, ceil: bool) -> Layer:
    """A convolution in bfloat16."""
    outputs, inputs = convolution.weight.shape[:2]
    block = min(outputs, 128)
    weights = (
        convolution.weight.permute(2, 3, 0, 1).reshape(1, 9, outputs, inputs).to("cuda", torch.bfloat16).contiguous()
    )
    bias = torch.stack([torch.ones(outputs), convolution.bias.cpu().float()], 1).cuda()  # type: ignore[union-attr]
    run = kernel(source(block, pool, ceil), "convolve", shared_bytes(block, pool))
    return Layer(run, tensor_map(weights, (64, block, 1, 1)), bias, inputs, outputs, block, pool, (weights,))


def shared_bytes(block: int, pool: bool, outward: int = 2) -> int:
    """Shared memory of `convolve`: stages of pictures and weights, and lines on their way out."""
    a, b = (3, 9) if block == 64 else (2, 5)
    out = 2 * (block * outward // LINE) * (32 if pool else 128) * LINE
    return 1024 + a * (TILE + 2) * TILE * LINE + b * block * LINE + out


@cache
def source(
    block: int = 0, pool: bool = False, ceil: bool = False, eight_in: bool = False, eight_out: bool = False
) -> str:
    """`kernels.cu` for one kind of layer; without a block, its other kernels."""
    text = files("crow.extract.engines").joinpath("kernels.cu").read_text()
    if not block:
        return text
    flags = {"BN": block, "POOL": pool, "CEIL": ceil, "IN8": eight_in, "OUT8": eight_out, "KEEP": block == 64}
    defines = "".join(f"#define {name} {int(value)}\n" for name, value in flags.items())
    return defines + text.replace("// PRODUCT: ", product(block, eight_in) + "// ")


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


def first_weights(first: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """The first convolution's weights as `first` in kernels.cu holds them, (3 x 8, 32 lanes, 4) bfloat16, and its bias."""
    lane, pair_of = torch.arange(32), torch.arange(4)
    inputs = torch.zeros(48, 64)
    inputs[:36] = first.weight.permute(2, 3, 1, 0).reshape(36, 64).cpu()  # (place, channel) by output
    step, block = torch.meshgrid(torch.arange(3), torch.arange(8), indexing="ij")
    column = lane // 4
    output = 16 * (column // 2) + 2 * block.reshape(-1, 1, 1) + (column % 2)[:, None]
    offsets = torch.tensor([0, 1, 8, 9])
    row = 16 * step.reshape(-1, 1, 1) + 2 * pair_of[lane % 4][:, None] + offsets
    return inputs[row, output.expand_as(row)].to("cuda", torch.bfloat16).contiguous(), first.bias.float().cuda()


def _levels(
    sizes: list[tuple[int, int]], pools: list[bool], ceil: bool
) -> tuple[NDArray[np.int32], list[tuple[int, int]]]:
    """Per layer and picture (first tile, tiles across, height, width) of what goes in, and the canvas (rows, columns)."""
    here = np.array(sizes, np.int32)
    tables, shapes = [], [tuple(here.max(0).tolist())]
    for pool in [*pools, False]:
        canvas = here.max(0)
        tiles = np.minimum(here // TILE + 1, -(-canvas // TILE))  # one beyond the border, which must be zero
        starts = np.concatenate([[0], np.cumsum(tiles.prod(1))[:-1]])
        tables.append(np.column_stack([starts, tiles[:, 1], here]))
        here = (here + ceil) // 2 if pool else here
        shapes.append(tuple(here.max(0).tolist()))
    if here.min() < 1:
        raise EngineError("a picture is too small for this network")
    return np.stack(tables).astype(np.int32), shapes


def _tiles(level: NDArray[np.int32], canvas: tuple[int, int]) -> int:
    """How many tiles a layer has."""
    start, across, height, _ = level[-1].tolist()
    return start + across * min(height // TILE + 1, -(-canvas[0] // TILE))


@cache
def _processors() -> int:
    return torch.cuda.get_device_properties("cuda").multi_processor_count
