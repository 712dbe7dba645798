"""`crow.extract.images` against pictures made by hand."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from crow.extract.images import PictureError, crop, load, prepare, resize
from crow.recipe import Size, View


def noise(height: int = 70, width: int = 90, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


def file_of(image: Image.Image, kind: str, **options: object) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


@pytest.mark.parametrize("kind", ["PNG", "TIFF", "BMP"])
def test_lossless_formats_give_the_exact_pixels(kind: str, tmp_path: Path) -> None:
    pixels = noise()
    path = tmp_path / "a.bin"
    path.write_bytes(file_of(Image.fromarray(pixels), kind))
    for source in (path, str(path), path.read_bytes(), io.BytesIO(path.read_bytes()), Image.open(path), pixels):
        picture = load(source)
        assert np.array_equal(picture.pixels, pixels)
        assert (picture.width, picture.height, picture.taken) == (90, 70, None)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(PictureError, match=r"b\.jpg: no such file$"):
        load(tmp_path / "b.jpg")


def test_prepare_crops_and_resizes() -> None:
    pixels = noise(400, 600)
    picture = prepare(pixels, View(size=Size("largest", 100)), box=(100, 50, 300, 250))
    assert picture.pixels.shape == (100, 100, 3)
    assert (picture.width, picture.height) == (600, 400)
    assert np.array_equal(picture.pixels, resize(crop(pixels, (100, 50, 300, 250)), Size("largest", 100)))
