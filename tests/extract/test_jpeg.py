"""JPEG files decoded on the GPU: the pixels, turns and vectors of Pillow's."""

from __future__ import annotations

import io
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from crow.extract.decoders import OnGpu, Threads
from crow.extract.describer import Describer
from crow.extract.engines import EngineError
from crow.extract.engines.cuda import usable
from crow.extract.engines.jpeg import Jpegs, jpegs
from crow.extract.images import Picture, PictureError, prepared
from crow.recipe import RECIPES, Size, View

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")

SIZES = [(16, 16), (17, 16), (33, 18), (640, 480), (481, 321), (101, 67), (250, 255)]  # (width, height)


@pytest.fixture(scope="module")
def decode() -> Jpegs:
    """nvJPEG on the GPU in use."""
    try:
        return jpegs("cuda")
    except EngineError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def photographs(photos: Path) -> list[Image.Image]:
    """One for each of SIZES."""
    files = sorted(photos.rglob("*.jpg"))[::20]
    return [Image.open(file).convert("RGB").resize(size) for file, size in zip(files, SIZES, strict=False)]


def file_of(image: Image.Image, **options: Any) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", **options)
    return buffer.getvalue()


def off(found: Any, file: bytes) -> tuple[float, float]:
    """The largest and the mean difference to Pillow's pixels."""
    expected = np.asarray(Image.open(io.BytesIO(file)).convert("RGB")).astype(int)
    difference = np.abs(found.permute(1, 2, 0).cpu().numpy() - expected)
    assert difference.shape == expected.shape
    return float(difference.max()), float(difference.mean())


@pytest.mark.parametrize("quality", [60, 92])
@pytest.mark.parametrize("subsampling", ["4:4:4", "4:2:2", "4:2:0"])
def test_pixels_are_pillows_but_for_a_rounding(
    decode: Jpegs, photographs: list[Image.Image], subsampling: str, quality: int
) -> None:
    """The two undo the cosines with other roundings: a digit in a plane is at most four in a colour."""
    files = [file_of(image, subsampling=subsampling, quality=quality) for image in photographs]
    for found, file in zip(decode(files), files, strict=True):
        most, mean = off(found, file)
        assert most <= 4 and mean < 0.5
    alone = [decode([file])[0] for file in files]
    assert all(torch.equal(one, other) for one, other in zip(alone, decode(files[::-1])[::-1], strict=True))


def test_files_of_all_kinds_of_halving_in_one_call(decode: Jpegs, photographs: list[Image.Image]) -> None:
    kinds = ["4:4:4", "4:2:2", "4:2:0", "4:2:0", "4:4:4", "4:2:2", "4:2:0"]
    files = [file_of(image, subsampling=kind) for image, kind in zip(photographs, kinds, strict=True)]
    files.append(file_of(photographs[3], restart_marker_rows=1))
    files.append(file_of(photographs[3], optimize=True, comment=b"a comment"))
    assert all(off(found, file)[0] <= 4 for found, file in zip(decode(files), files, strict=True))


def test_what_it_cannot_decode_is_said_and_the_next_call_works(decode: Jpegs, photographs: list[Image.Image]) -> None:
    good = file_of(photographs[3])
    for bad in (b"", b"not a picture", good[:300], file_of(photographs[3].convert("L"))):
        with pytest.raises(EngineError, match="nvJPEG"):
            decode([good, bad])
        assert off(decode([good])[0], good)[0] <= 4


def test_threads_take_turns(decode: Jpegs, photographs: list[Image.Image]) -> None:
    files = [file_of(image) for image in photographs]
    expected = [found.cpu() for found in decode(files)]

    def same(i: int) -> bool:
        return torch.equal(decode([files[i % len(files)]])[0].cpu(), expected[i % len(files)])

    with ThreadPoolExecutor(4) as threads:
        assert all(threads.map(same, range(60)))


def sources_in(folder: Path, photographs: list[Image.Image]) -> Iterator[Path]:
    for i, image in enumerate(photographs):
        exif = Image.Exif()
        exif[0x0112], exif[0x0132] = i + 1, "2024:05:06 12:13:14"
        image.save(folder / f"{i}.jpg", exif=exif, subsampling=["4:2:0", "4:2:2", "4:4:4"][i % 3])
        yield folder / f"{i}.jpg"
    photographs[3].save(folder / "progressive.jpg", progressive=True)
    photographs[3].convert("L").save(folder / "grey.jpg")
    (folder / "text.jpg").write_text("not a picture")
    yield from (folder / f"{name}.jpg" for name in ("progressive", "grey", "text", "gone"))


def test_files_come_as_the_view_wants_them(decode: Jpegs, photographs: list[Image.Image], tmp_path: Path) -> None:
    decoder, sources = OnGpu("cuda", Threads()), list(sources_in(tmp_path, photographs))
    for view in (View(size=Size()), View(size=Size("largest", 200)), View(size=Size("square", 96), upright=False)):
        for box in (None, (1, 2, 15, 14)):
            found = decoder(list(sources), view, box)
            on_gpu = [isinstance(each, Picture) and isinstance(each.pixels, torch.Tensor) for each in found]
            assert sum(on_gpu) == (len(photographs) if box is None else 0)
            for one, source in zip(found, sources, strict=True):
                expected = prepared(source, view, box)
                if isinstance(one, PictureError) or isinstance(expected, PictureError):
                    assert str(one) == str(expected)
                    continue
                assert (one.width, one.height, one.taken) == (expected.width, expected.height, expected.taken)
                pixels: Any = one.pixels
                if isinstance(pixels, torch.Tensor):
                    pixels = pixels.permute(1, 2, 0).cpu().numpy()
                assert np.abs(pixels.astype(int) - expected.pixels).max() <= 5


@pytest.mark.skipif(not usable(), reason="no Hopper GPU (H100, H200) here")
def test_vectors_are_those_of_pillows_pixels(decode: Jpegs, vgg16: Path, photos: Path) -> None:
    files = sorted(photos.rglob("*.jpg"))[::4]
    describer = Describer(RECIPES["crow"], engine="cuda")
    vars(describer)["_decoder"] = Threads()
    expected = describer(files)
    vars(describer)["_decoder"] = OnGpu("cuda", Threads())
    assert (describer(files) * expected).sum(1).min() >= 0.9995
