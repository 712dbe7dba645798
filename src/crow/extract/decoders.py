"""Decoders: how files become pixels ahead of the network: in threads, in processes (`workers`), or on the GPU."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from PIL import Image, __version__

from crow.extract.cores import granted_cores
from crow.extract.formats import name_of, open_picture, read
from crow.extract.images import Box, Picture, PictureError, Source, facts, prepared, target
from crow.extract.workers import Workers
from crow.recipe import View

if TYPE_CHECKING:
    import torch

    from crow.extract.engines import Engine

LARGEST = 1 << 24  # pixels; larger ones are decoded one by one on the processor, so that the GPU's memory suffices
PILLOW = int(__version__.partition(".")[0])  # from 13 on, what loses many more rows than columns is resized down first
WORTH = 4  # cores from which on processes are faster than threads


class Decoder(Protocol):
    """Pictures as a view wants them, some at a time, in each of some threads."""

    group: int  # pictures that are decoded together
    threads: int

    def __call__(self, sources: list[Source], view: View, box: Box | None) -> Sequence[Picture | PictureError]:
        """Each picture as `prepare` gives it, or why there is none."""
        ...


class Threads:
    """Pillow, in the thread that asks."""

    group = 1

    def __init__(self) -> None:
        self.threads = min(8, granted_cores())

    def __call__(self, sources: list[Source], view: View, box: Box | None) -> list[Picture | PictureError]:
        """Each picture as `prepare` gives it, or why there is none."""
        return [prepared(source, view, box) for source in sources]


class OnGpu:
    """Everyday JPEG files on the GPU, all else by another decoder."""

    group = 32

    def __init__(self, device: str, rest: Decoder) -> None:
        from crow.extract.engines.jpeg import jpegs

        self.jpegs, self.rest, self.threads = jpegs(device), rest, rest.threads

    def __call__(self, sources: list[Source], view: View, box: Box | None) -> list[Picture | PictureError]:
        """Each picture as `prepare` gives it, its pixels (3, h, w) on the GPU, or why there is none."""
        files = {i: file for i, source in enumerate(sources) if box is None and (file := _everyday(source, view))}
        found = self._decoded(files, view) if files else {}
        left = [i for i in range(len(sources)) if i not in found]
        others = self.rest([sources[i] for i in left], view, box)
        found |= dict(zip(left, others, strict=True))
        return [found[i] for i in range(len(sources))]

    def _decoded(self, files: dict[int, tuple[bytes, Image.Image]], view: View) -> dict[int, Picture | PictureError]:
        """Those that nvJPEG can decode; one that it cannot decode leaves its whole group to the other decoder."""
        import torch

        from crow.extract.engines import EngineError

        try:
            pixels = self.jpegs([data for data, _ in files.values()])
        except (EngineError, torch.OutOfMemoryError):
            return {}
        found: dict[int, Picture | PictureError] = {}
        for (i, (_, image)), x in zip(files.items(), pixels, strict=True):
            orientation, taken = facts(image)
            x = _turned(x, orientation if view.upright else 1)
            height, width = x.shape[1:]
            fitted: Any = _resized(x, *target(width, height, view.size))
            found[i] = Picture(fitted, width, height, taken)
        return found


def decoder_for(engine: Engine) -> Decoder:
    """What keeps an engine fed."""
    if engine.device == "cpu" or granted_cores() < WORTH:
        return Threads()
    from crow.extract.engines import EngineError

    if getattr(engine, "takes_tensors", False):
        try:
            return OnGpu(engine.device, Workers(granted_cores()))
        except EngineError:
            pass
    return Workers(granted_cores())


def _everyday(source: Source, view: View) -> tuple[bytes, Image.Image] | None:
    """The bytes and the header of a whole JPEG of three colours with no profile of its own; None of anything else."""
    if not isinstance(source, str | bytes | Path):
        return None
    try:
        data = read(source)
        image = open_picture(data, name_of(source)) if data.startswith(b"\xff\xd8\xff") else None
    except (PictureError, MemoryError):
        return None
    if image is None or image.mode != "RGB" or min(image.size) < 16 or b"\xff\xd9" not in data[-64:]:
        return None
    if max(math.prod(image.size), math.prod(target(*image.size, view.size))) > LARGEST:
        return None
    odd = "icc_profile" in image.info or "progressive" in image.info or image.info.get("adobe_transform", 1) != 1
    return None if odd or bytes(part[0] for part in image.layer) == b"RGB" else (data, image)  # type: ignore[attr-defined]


def _turned(x: torch.Tensor, orientation: int) -> torch.Tensor:
    """(3, h, w) -> upright: EXIF's orientations 1 to 8 are turns, and turns of the mirrored picture."""
    if orientation in (5, 7, 2, 4):
        x = x.flip(2)
    turns = {3: 2, 4: 2, 5: 1, 6: 3, 7: 3, 8: 1}.get(orientation, 0)
    return x.rot90(turns, (1, 2)) if turns else x


def _resized(x: torch.Tensor, width: int, height: int) -> torch.Tensor:
    """(3, H, W) -> (3, height, width) as Pillow's bicubic does it: in whole numbers across, then down, or the reverse."""
    import torch

    rows, columns = x.shape[1:]
    down_first = PILLOW >= 13 and max(2 * (columns - width), 0) < rows - height
    between = (height, columns) if down_first else (rows, width)
    for size in (between, (height, width)):
        if tuple(x.shape[1:]) != size:
            y = torch.nn.functional.interpolate(x[None].float(), size, mode="bicubic", antialias=True)
            x = y[0].round().clamp(0, 255).to(torch.uint8)
    return x
