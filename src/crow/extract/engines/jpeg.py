"""JPEG files to pixels on the GPU: nvJPEG undoes the coding, a kernel of our own makes the colours as libjpeg does.

nvJPEG's own colours repeat each sample of the halved chroma planes where libjpeg, and so Pillow, blends neighbours: the
vectors of such pixels had cosines down to 0.9945. With planes taken as they are and blended here, they are class `exact`.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from queue import SimpleQueue

import numpy as np
import torch

from crow.extract.engines import EngineError
from crow.extract.engines.driver import kernel, source

HARDWARE, DEFAULT = 3, 0  # nvjpegBackend_t; the first runs beside the network, on decoders of its own
YUV = 1  # nvjpegOutputFormat_t: planes as they are coded
HALVED = {
    0: (1, 1),
    1: (2, 1),
    2: (2, 2),
}  # nvjpegChromaSubsampling_t -> how many pixels across and down share a sample
ALIGN = 256
LANES = 3  # files of so many threads are decoded at a time
FILE = np.dtype(
    [("planes", "<u8", 3), ("pixels", "<u8"), ("pitch", "<i4", 2), ("size", "<i4", 2), ("halved", "<i4", 2)]
)


class _Image(ctypes.Structure):
    _fields_ = (("channel", ctypes.c_void_p * 4), ("pitch", ctypes.c_size_t * 4))


class Jpegs:
    """nvJPEG on one GPU: files of several threads at a time, each in a lane of its own."""

    def __init__(self, device: str) -> None:
        self._lanes: SimpleQueue[Lane] = SimpleQueue()
        for _ in range(LANES):
            self._lanes.put(Lane(device))

    def __call__(self, files: Sequence[bytes]) -> list[torch.Tensor]:
        """n files -> (3, h, w) uint8 each, ready on the GPU; EngineError where one of them cannot be decoded so."""
        lane = self._lanes.get()
        try:
            return lane(files)
        finally:
            self._lanes.put(lane)


class Lane:
    """A decoder with a stream that goes before the network's: its small kernels would wait for each large one."""

    def __init__(self, device: str) -> None:
        self.device = device
        with torch.cuda.device(device):
            self._colours = kernel(source("colours"), "colours")
            self.stream = torch.cuda.Stream(device, priority=-1)  # type: ignore[no-untyped-call]
            self._handle, self._state = ctypes.c_void_p(), ctypes.c_void_p()
            if _library().nvjpegCreateEx(HARDWARE, None, None, 0, ctypes.byref(self._handle)):
                _check(_library().nvjpegCreateEx(DEFAULT, None, None, 0, ctypes.byref(self._handle)))
            _check(_library().nvjpegJpegStateCreate(self._handle, ctypes.byref(self._state)))

    def __call__(self, files: Sequence[bytes]) -> list[torch.Tensor]:
        """n files -> (3, h, w) uint8 each, ready on the GPU; EngineError where one of them cannot be decoded so."""
        with torch.cuda.device(self.device), torch.inference_mode(False):
            shapes = [self._shape(file) for file in files]
            with torch.cuda.stream(self.stream):
                pixels = self._decoded(files, shapes)
            self.stream.synchronize()
            for x in pixels:
                x.record_stream(torch.cuda.current_stream())  # its memory is not used again before it was read there
        return pixels

    def _shape(self, file: bytes) -> tuple[int, int, tuple[int, int]]:
        """(width, height, how many pixels across and down share a sample of colour) of a file."""
        parts, kind = ctypes.c_int(), ctypes.c_int()
        widths, heights = (ctypes.c_int * 4)(), (ctypes.c_int * 4)()
        into = (ctypes.byref(parts), ctypes.byref(kind), widths, heights)
        _check(_library().nvjpegGetImageInfo(self._handle, file, ctypes.c_size_t(len(file)), *into))
        if parts.value != 3 or kind.value not in HALVED:
            raise EngineError("nvJPEG: not the planes of an everyday photograph")
        return widths[0], heights[0], HALVED[kind.value]

    def _decoded(
        self, files: Sequence[bytes], shapes: Sequence[tuple[int, int, tuple[int, int]]]
    ) -> list[torch.Tensor]:
        images, records, pixels, planes = (_Image * len(files))(), np.zeros(len(files), FILE), [], []
        for image, record, (width, height, (across, down)) in zip(images, records, shapes, strict=True):
            narrow, low = -(-width // across), -(-height // down)
            pitches = [-(-side // ALIGN) * ALIGN for side in (width, narrow, narrow)]
            sizes = [pitch * rows for pitch, rows in zip(pitches, (height, low, low), strict=True)]
            plane = torch.empty(sum(sizes), dtype=torch.uint8, device=self.device)
            result = torch.empty((3, height, width), dtype=torch.uint8, device=self.device)
            starts = [plane.data_ptr() + sum(sizes[:i]) for i in range(3)]
            for i in range(3):
                image.channel[i], image.pitch[i] = starts[i], pitches[i]
            record["planes"], record["pixels"], record["pitch"] = starts, result.data_ptr(), pitches[:2]
            record["size"], record["halved"] = (width, height), (across, down)
            planes.append(plane)
            pixels.append(result)
        self._decode(files, images)
        table = torch.from_numpy(records.view(np.uint8)).to(self.device)
        blocks = max(-(-width * height // 256) for width, height, _ in shapes)
        self._colours.launch((min(blocks, 1024), len(files)), 256, table)()
        return pixels

    def _decode(self, files: Sequence[bytes], images: ctypes.Array[_Image]) -> None:
        """All files into their planes, at once."""
        count, stream = len(files), ctypes.c_void_p(self.stream.cuda_stream)
        given = (ctypes.c_char_p * count)(*files)
        lengths = (ctypes.c_size_t * count)(*map(len, files))
        _check(_library().nvjpegDecodeBatchedInitialize(self._handle, self._state, count, 1, YUV))
        _check(_library().nvjpegDecodeBatched(self._handle, self._state, given, lengths, images, stream))


@cache
def jpegs(device: str) -> Jpegs:
    """The one for a GPU, made when it is first asked for; EngineError where there is no nvJPEG."""
    return Jpegs(device)


@cache
def _library() -> ctypes.CDLL:
    """nvJPEG as CUDA, its own package or torchvision brings it."""
    version = (torch.version.cuda or "12").partition(".")[0]
    name = f"libnvjpeg.so.{version}"
    folders = [Path(path) / "nvidia" for path in sys.path if path]
    found = [os.fspath(place) for folder in folders for place in sorted(folder.glob(f"*/lib/{name}"))]
    with suppress(PackageNotFoundError):
        bundled = [str(file.locate()) for file in distribution("torchvision").files or [] if "libnvjpeg" in file.name]
        found += bundled
    for place in (name, f"/usr/local/cuda/lib64/{name}", *found):
        with suppress(OSError):
            return ctypes.CDLL(place)
    raise EngineError(f"{name} is not there: it comes with CUDA, with torchvision and with nvidia-nvjpeg")


def _check(result: int) -> None:
    if result:
        raise EngineError(f"nvJPEG: status {result}")
