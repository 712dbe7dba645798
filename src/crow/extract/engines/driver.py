"""Driver: CUDA source to running kernels, through NVRTC and the driver that torch brings, by ctypes; no compiler needed."""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import os
import sys
from collections.abc import Sequence
from functools import cache, lru_cache
from importlib.resources import files
from itertools import accumulate
from operator import mul
from pathlib import Path
from typing import Any

import torch

from crow.extract.engines import EngineError
from crow.extract.engines.kept import keep, kept
from crow.extract.pretrained import cache_folder

DYNAMIC_SHARED = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
TYPES = {torch.uint8: 0, torch.float8_e4m3fn: 0, torch.bfloat16: 9}  # CUtensorMapDataType; eight-bit floats are bytes
SWIZZLE_128 = 3  # lines of 128 bytes lie in shared memory so that neither copies nor products collide


class Launch:
    """A function on the GPU with its arguments; calling it puts it on a stream, torch's current one if none is given."""

    def __init__(self, kernel: Kernel, grid: tuple[int, int], threads: int, arguments: Sequence[Any]) -> None:
        self._values = [ctypes.c_void_p(a.data_ptr()) if isinstance(a, torch.Tensor) else a for a in arguments]
        self._pointers = (ctypes.c_void_p * len(self._values))(*map(ctypes.addressof, self._values))
        self._shape = (kernel.function, *grid, 1, threads, 1, 1, kernel.shared)

    def __call__(self, stream: ctypes.c_void_p | None = None) -> None:
        stream = stream_now() if stream is None else stream  # torch's usual one is 0
        _check(_driver().cuLaunchKernel(*self._shape, stream, self._pointers, None))

    def give(self, place: int, tensor: torch.Tensor) -> None:
        """Another tensor as the argument at a place."""
        self._values[place].value = tensor.data_ptr()


class Kernel:
    """A function on the GPU."""

    def __init__(self, function: ctypes.c_void_p, shared: int) -> None:
        self.function, self.shared = function, shared
        if shared:
            _check(_driver().cuFuncSetAttribute(function, DYNAMIC_SHARED, shared))

    def launch(self, grid: tuple[int, int], threads: int, *arguments: Any) -> Launch:
        """Ready to be launched, with ctypes values and tensors (their addresses) as arguments."""
        return Launch(self, grid, threads, arguments)


def stream_now() -> ctypes.c_void_p:
    """Torch's current stream, as the driver wants it."""
    return ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)


@cache
def source(name: str, before: str = "") -> str:
    """What is compiled of `kernels/NAME.cu`: what all have in common, what is laid before it, and the file."""
    folder = files("crow.extract.engines") / "kernels"
    return (folder / "common.cu").read_text() + before + (folder / f"{name}.cu").read_text()


def kernel(source: str, name: str, shared: int = 0) -> Kernel:
    """A function of a source for the GPU in use, compiled once and kept in the cache folder."""
    torch.cuda.current_stream()  # torch makes the context
    major, minor = torch.cuda.get_device_capability()
    target = f"sm_{major}{minor}{'a' if major >= 9 else ''}"
    version = (ctypes.c_int(), ctypes.c_int())
    _nvrtc().nvrtcVersion(*map(ctypes.byref, version))
    key = hashlib.sha256(repr((source, target, [v.value for v in version])).encode()).hexdigest()[:32]
    place = cache_folder() / "cuda" / f"{key}.cubin"
    code = kept(place)
    if code is None:
        code = _compiled(source, target)
        keep(code, place)
    module, function = ctypes.c_void_p(), ctypes.c_void_p()
    _check(_driver().cuModuleLoadData(ctypes.byref(module), code))
    _check(_driver().cuModuleGetFunction(ctypes.byref(function), module, name.encode()))
    return Kernel(function, shared)


def libraries() -> None:
    """EngineError where the driver or NVRTC cannot be loaded."""
    _driver()
    _nvrtc()


def tensor_map(tensor: torch.Tensor, box: tuple[int, int, int, int]) -> ctypes.Array[ctypes.c_char]:
    """How the copy engine finds boxes of a contiguous (n, y, x, c) tensor; `box` is (c, x, y, n)."""
    return _tensor_map(tensor.data_ptr(), tuple(tensor.shape), tensor.dtype, box)


@lru_cache(4096)
def _tensor_map(
    address: int, shape: tuple[int, ...], dtype: torch.dtype, box: tuple[int, int, int, int]
) -> ctypes.Array[ctypes.c_char]:
    room = ctypes.create_string_buffer(128 + 64)
    skip = -ctypes.addressof(room) % 64
    made = (ctypes.c_char * 128).from_buffer(room, skip)
    sizes = shape[::-1]
    steps = [dtype.itemsize * step for step in accumulate(sizes[:-1], mul)]
    _check(
        _driver().cuTensorMapEncodeTiled(
            ctypes.byref(made), TYPES[dtype], 4, ctypes.c_void_p(address),
            (ctypes.c_uint64 * 4)(*sizes), (ctypes.c_uint64 * 3)(*steps), (ctypes.c_uint32 * 4)(*box),
            (ctypes.c_uint32 * 4)(1, 1, 1, 1), 0, SWIZZLE_128, 3, 0,
        )
    )  # fmt: skip
    return made


def _compiled(source: str, target: str) -> bytes:
    """Source -> machine code of one kind of GPU."""
    nvrtc, program = _nvrtc(), ctypes.c_void_p()
    nvrtc.nvrtcCreateProgram(ctypes.byref(program), source.encode(), b"crow.cu", 0, None, None)
    options = [f"--gpu-architecture={target}".encode(), b"--std=c++17"]
    failed = nvrtc.nvrtcCompileProgram(program, len(options), (ctypes.c_char_p * len(options))(*options))
    size = ctypes.c_size_t()
    if failed:
        nvrtc.nvrtcGetProgramLogSize(program, ctypes.byref(size))
        log = ctypes.create_string_buffer(size.value)
        nvrtc.nvrtcGetProgramLog(program, log)
        raise EngineError(f"the CUDA kernels cannot be compiled for {target}: {log.value.decode().strip()}")
    nvrtc.nvrtcGetCUBINSize(program, ctypes.byref(size))
    code = ctypes.create_string_buffer(size.value)
    nvrtc.nvrtcGetCUBIN(program, code)
    nvrtc.nvrtcDestroyProgram(ctypes.byref(program))
    return code.raw


@cache
def _driver() -> ctypes.CDLL:
    try:
        return ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise EngineError(f"no CUDA driver can be loaded: {error}") from None


@cache
def _nvrtc() -> ctypes.CDLL:
    """NVRTC as torch brings it."""
    version = (torch.version.cuda or "12").partition(".")[0]
    name = f"libnvrtc.so.{version}"
    folders = [Path(path) / "nvidia" for path in sys.path if path]
    for place in [name, *(os.fspath(found) for folder in folders for found in folder.glob(f"*/lib/{name}"))]:
        with contextlib.suppress(OSError):
            return ctypes.CDLL(place)
    raise EngineError(f"{name} is not there: it comes with torch's CUDA builds")


def _check(result: int) -> None:
    if result:
        text = ctypes.c_char_p()
        _driver().cuGetErrorString(result, ctypes.byref(text))
        raise EngineError(f"CUDA: {(text.value or b'error').decode()}")
