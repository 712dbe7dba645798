"""What is decoded where, and that a GPU's pictures end as Pillow's do; here on the processor, in tests/extract/test_jpeg.py on a GPU."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image, ImageCms

from crow.extract import decoders
from crow.extract.decoders import OnGpu, Threads, decoder_for
from crow.extract.engines import EngineError
from crow.extract.images import Picture, PictureError, prepared
from crow.recipe import Size, View

VIEWS = [
    View(size=Size.parse(size), upright=upright) for size in ("original", "96", "70x70") for upright in (True, False)
]


def photograph(width: int, height: int) -> np.ndarray:
    """Slow gradients without any symmetry, and some grain."""
    y, x = np.mgrid[0:height, 0:width] / max(height, width)
    pixels = np.stack([40 + 200 * x, 230 - 180 * y, 60 + 90 * x + 60 * y], axis=-1)
    return (pixels + np.random.default_rng(0).normal(0, 6, pixels.shape)).clip(0, 255).astype(np.uint8)


def jpeg(width: int = 120, height: int = 90, mode: str = "RGB", **options: Any) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(photograph(width, height)).convert(mode).save(buffer, "JPEG", quality=90, **options)
    return buffer.getvalue()


def exif(orientation: int) -> Image.Exif:
    made = Image.Exif()
    made[0x0112], made[0x0132] = orientation, "2024:05:06 12:13:14"
    return made


def here(files: Sequence[bytes]) -> list[torch.Tensor]:
    """In the place of nvJPEG: Pillow's pixels as planes."""
    if any(b"broken" in file for file in files):
        raise EngineError("nvJPEG: status 5")
    return [torch.from_numpy(np.array(Image.open(io.BytesIO(file)))).permute(2, 0, 1) for file in files]


def as_on_gpu() -> OnGpu:
    decoder = object.__new__(OnGpu)
    decoder.jpegs, decoder.rest, decoder.threads = here, Threads(), 1  # type: ignore[assignment]
    return decoder


def check(found: Picture | PictureError, expected: Picture | PictureError) -> None:
    """The same facts, and pixels that differ by a digit at most, wherever they are."""
    if isinstance(expected, PictureError) or isinstance(found, PictureError):
        assert str(found) == str(expected)
        return
    pixels: Any = found.pixels
    if isinstance(pixels, torch.Tensor):
        pixels = pixels.permute(1, 2, 0).numpy()
    assert (found.width, found.height, found.taken) == (expected.width, expected.height, expected.taken)
    assert pixels.shape == expected.pixels.shape
    difference = np.abs(pixels.astype(int) - expected.pixels)
    assert difference.max() <= 1 and difference.mean() < 0.05


def everyday(source: Any, size: str = "original") -> bool:
    return decoders._everyday(source, View(size=Size.parse(size))) is not None


def test_everyday_photographs_go_to_the_gpu(tmp_path: Path) -> None:
    (tmp_path / "a.jpg").write_bytes(jpeg())
    for source in (tmp_path / "a.jpg", str(tmp_path / "a.jpg"), jpeg(subsampling=0), jpeg(exif=exif(6)), jpeg(17, 16)):
        assert everyday(source)


def test_all_else_does_not(tmp_path: Path) -> None:
    profile = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
    rgb = jpeg(keep_rgb=True)
    start = rgb.index(b"\xff\xee")
    unmarked = rgb[:start] + rgb[start + 2 + int.from_bytes(rgb[start + 2 : start + 4], "big") :]
    assert Image.open(io.BytesIO(unmarked)).getpixel((0, 0)) == Image.open(io.BytesIO(rgb)).getpixel((0, 0))
    png = io.BytesIO()
    Image.fromarray(photograph(50, 40)).save(png, "PNG")
    (tmp_path / "text.jpg").write_text("not a picture")
    others: dict[str, Any] = {
        "grey": jpeg(mode="L"),
        "CMYK": jpeg(mode="CMYK"),
        "progressive": jpeg(progressive=True),
        "with a profile": jpeg(icc_profile=profile),
        "red, green and blue, said by Adobe's marker": rgb,
        "red, green and blue, said by the names of the parts": unmarked,
        "cut short": jpeg()[:-200],
        "PNG": png.getvalue(),
        "text": tmp_path / "text.jpg",
        "absent": tmp_path / "gone.jpg",
        "tiny": jpeg(15, 40),
        "open": io.BytesIO(jpeg()),
        "pixels": photograph(50, 40),
        "an image": Image.fromarray(photograph(50, 40)),
    }
    assert [name for name, source in others.items() if everyday(source)] == []
    assert not everyday(jpeg(), "5000x5000")  # more than the network has room for: the other decoder says so


def test_large_ones_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoders, "LARGEST", 119 * 90)
    assert not everyday(jpeg(120, 90)) and everyday(jpeg(119, 90))


@pytest.mark.parametrize("orientation", range(1, 9))
def test_turned_and_resized_as_pillow_does_it(orientation: int) -> None:
    files = [jpeg(width, height, exif=exif(orientation)) for width, height in ((161, 90), (70, 203), (90, 40))]
    for view in VIEWS:
        for found, file in zip(as_on_gpu()(files, view, None), files, strict=True):
            assert isinstance(found, Picture) and isinstance(found.pixels, torch.Tensor)
            check(found, prepared(file, view))


@pytest.mark.parametrize("scale", [0.2, 0.5, 0.9, 1.1])
def test_resized_in_the_order_that_pillow_takes(scale: float) -> None:
    """In noise, the other order is off by twenty digits."""
    rng = np.random.default_rng(0)
    shapes = [
        (200, 90),
        (180, 95),
        (90, 200),
        (100, 100),
        (210, 100),
        (204, 100),
        *rng.integers(60, 250, (9, 2)).tolist(),
    ]
    for height, width in shapes:
        pixels = rng.integers(0, 256, (height, width, 3), dtype=np.uint8)
        for size in ((round(width * scale), round(height * scale)), (round(width * scale), 80), (70, 70)):
            expected = np.asarray(Image.fromarray(pixels).resize(size, Image.Resampling.BICUBIC))
            found = decoders._resized(torch.from_numpy(pixels).permute(2, 0, 1), *size).permute(1, 2, 0).numpy()
            difference = np.abs(found.astype(int) - expected)
            assert difference.max() <= 2 and difference.mean() < 0.01


def test_a_group_keeps_its_order_whoever_decodes(tmp_path: Path) -> None:
    (tmp_path / "text.jpg").write_text("not a picture")
    sources: list[Any] = [jpeg(90, 80), photograph(50, 40), jpeg(100, 80), tmp_path / "text.jpg", jpeg(mode="L")]
    for box in (None, (3, 4, 40, 39)):
        for group in (sources, sources[:1], sources[1:2], [*sources, jpeg(110, 70, comment=b"broken")]):
            found = as_on_gpu()(group, VIEWS[2], box)
            for one, source in zip(found, group, strict=True):
                check(one, prepared(source, VIEWS[2], box))


def test_files_for_a_processor_are_decoded_in_threads() -> None:
    class Engine:
        device = "cpu"

    decoder = decoder_for(Engine())  # type: ignore[arg-type]
    assert isinstance(decoder, Threads) and 1 <= decoder.threads <= 8
    for found, source in zip(decoder([jpeg(), b"?"], VIEWS[0], None), [jpeg(), b"?"], strict=True):
        check(found, prepared(source, VIEWS[0]))
