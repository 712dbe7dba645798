"""`crow.extract.images` against pictures made by hand, whose every pixel is known."""

from __future__ import annotations

import io
import os
import resource
import struct
import subprocess
import sys
import warnings
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageCms

from crow.extract import colour, formats
from crow.extract.images import PictureError, crop, load, prepare, read, resize
from crow.recipe import Size, View

Array = np.ndarray[Any, Any]


def noise(height: int = 70, width: int = 90, channels: int = 3, seed: int = 0) -> Array:
    shape = (height, width, channels) if channels > 1 else (height, width)
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def smooth(height: int = 96, width: int = 128) -> Array:
    """A picture that lossy formats keep closely: three slow gradients, no symmetry."""
    y, x = np.mgrid[0:height, 0:width] / max(height, width)
    return np.stack([40 + 200 * x, 230 - 180 * y, 60 + 90 * x + 60 * y], axis=-1).round().astype(np.uint8)


def file_of(image: Image.Image | Array, kind: str, **options: Any) -> bytes:
    image = Image.fromarray(image) if isinstance(image, np.ndarray) else image
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def heic_of(pixels: Array, **options: Any) -> bytes:
    pillow_heif = pytest.importorskip("pillow_heif")
    buffer = io.BytesIO()
    pillow_heif.from_pillow(Image.fromarray(pixels)).save(buffer, **options)
    return buffer.getvalue()


def png_of(width: int, height: int, depth: int, colour: int, rows: bytes, *chunks: tuple[bytes, bytes]) -> bytes:
    """A PNG written by hand: `rows` are the lines, each after its filter byte."""

    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    header = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0)
    parts = [(b"IHDR", header), *chunks, (b"IDAT", zlib.compress(rows)), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunk(*part) for part in parts)


def near(a: Array, b: Array, mean: float = 2.0, most: float = 12.0) -> bool:
    difference = np.abs(a.astype(int) - b)
    return a.shape == b.shape and difference.mean() <= mean and difference.max() <= most


def reason(source: Any, **options: Any) -> str:
    with pytest.raises(PictureError) as caught:
        load(source, **options)
    assert "\n" not in str(caught.value)
    assert str(caught.value).endswith(f": {caught.value.reason}")
    return caught.value.reason


# Formats


@pytest.mark.parametrize("kind", ["PNG", "TIFF", "BMP"])
def test_lossless_formats_give_the_exact_pixels_from_every_kind_of_source(kind: str, tmp_path: Path) -> None:
    pixels = noise()
    path = tmp_path / "a.bin"
    path.write_bytes(file_of(pixels, kind))
    for source in (path, str(path), path.read_bytes(), io.BytesIO(path.read_bytes()), Image.open(path), pixels):
        picture = load(source)
        assert np.array_equal(picture.pixels, pixels)
        assert picture.pixels.flags.writeable and picture.pixels.flags.c_contiguous
        assert (picture.width, picture.height, picture.taken) == (90, 70, None)


def test_lossless_webp_and_compressed_tiff_give_the_exact_pixels() -> None:
    pixels = noise()
    assert np.array_equal(load(file_of(pixels, "WEBP", lossless=True)).pixels, pixels)
    for compression in ("tiff_lzw", "tiff_adobe_deflate", "packbits"):
        assert np.array_equal(load(file_of(pixels, "TIFF", compression=compression)).pixels, pixels)


@pytest.mark.parametrize("kind", ["JPEG", "WEBP", "AVIF", "HEIC"])
def test_lossy_formats_give_nearly_the_pixels(kind: str) -> None:
    pixels = smooth()
    data = heic_of(pixels, quality=95) if kind == "HEIC" else file_of(pixels, kind, quality=95)
    picture = load(data)
    assert near(picture.pixels, pixels)
    assert (picture.width, picture.height) == (128, 96)


def test_the_name_of_a_file_does_not_tell_its_format(tmp_path: Path) -> None:
    path = tmp_path / "really_a_png.jpg"
    path.write_bytes(file_of(noise(), "PNG"))
    assert np.array_equal(load(path).pixels, noise())


@pytest.mark.parametrize("kind", ["GIF", "PNG", "WEBP", "TIFF"])
def test_only_the_first_frame_counts(kind: str) -> None:
    frames = [Image.new("RGB", (70, 80), colour) for colour in ("red", "blue", "lime")]
    options = {"lossless": True} if kind == "WEBP" else {}
    picture = load(file_of(frames[0], kind, save_all=True, append_images=frames[1:], **options))
    assert (picture.pixels == (255, 0, 0)).all()


def test_ten_thousand_frames_cost_no_more_than_one(monkeypatch: pytest.MonkeyPatch) -> None:
    frame = file_of(Image.new("P", (16, 16), 3), "GIF")
    body = frame[13 + 3 * 2 ** ((frame[10] & 7) + 1) : -1]
    seeks: list[int] = []
    plugin = __import__("PIL.GifImagePlugin", fromlist=["GifImageFile"]).GifImageFile
    original = plugin._seek
    monkeypatch.setattr(plugin, "_seek", lambda self, n, *a: (seeks.append(n), original(self, n, *a))[1])
    picture = load(frame[:-1] + body * 9_999 + b";")
    assert picture.pixels.shape == (16, 16, 3)
    assert set(seeks) == {0}


def test_a_phones_multi_picture_file_is_its_first_picture() -> None:
    first, second = smooth(), 255 - smooth()
    data = file_of(first, "MPO", save_all=True, append_images=[Image.fromarray(second)], quality=95)
    assert near(load(data).pixels, first)


# Depth, palette, transparency


def test_sixteen_bit_grey_is_scaled_not_clipped() -> None:
    values = np.arange(0, 65536, 257, dtype=np.uint16).reshape(16, 16)
    expected = np.repeat(np.arange(256, dtype=np.uint8).reshape(16, 16, 1), 3, axis=2)
    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in values)
    sources = (
        png_of(16, 16, 16, 0, rows),
        file_of(Image.fromarray(values), "PNG"),
        file_of(Image.fromarray(values), "TIFF"),
        file_of(Image.fromarray(values.astype(">u2")), "TIFF"),
        Image.fromarray(values),
    )
    for source in sources:
        assert np.array_equal(load(source).pixels, expected)


def test_sixteen_bit_grey_is_rounded() -> None:
    values = np.random.default_rng(0).integers(0, 65536, (64, 64), dtype=np.uint16)
    assert np.array_equal(load(Image.fromarray(values)).pixels[..., 0], np.rint(values / 65535 * 255))


def test_sixteen_bit_colour_is_scaled() -> None:
    pixels = noise(20, 30)
    rows = b"".join(b"\0" + (row.astype(">u2") * 257).tobytes() for row in pixels)
    assert np.array_equal(load(png_of(30, 20, 16, 2, rows)).pixels, pixels)
    tifffile = pytest.importorskip("tifffile")
    buffer = io.BytesIO()
    tifffile.imwrite(buffer, pixels.astype(np.uint16) * 257, photometric="rgb")
    assert np.array_equal(load(buffer.getvalue()).pixels, pixels)


def test_float_and_32_bit_tiff() -> None:
    levels = np.linspace(0, 1, 64, dtype=np.float32).reshape(8, 8)
    expected = np.rint(levels * 255).astype(np.uint8)
    scaled = (levels * 9000 - 3000).astype(np.float32)
    holes = scaled.copy()
    holes[3, 3] = np.nan
    for values in (levels, scaled, holes, (levels * 1e6).round().astype(np.int32)):
        got = load(file_of(Image.fromarray(values), "TIFF")).pixels
        known = np.isfinite(values)
        assert np.abs(got[..., 0].astype(int) - expected)[known].max() <= 1
        assert (got[..., 0] == got[..., 2]).all()
    for flat in (np.full((4, 4), np.nan, np.float32), np.full((4, 4), 7, np.int32)):
        assert load(Image.fromarray(flat)).pixels.shape == (4, 4, 3)


def test_one_bit_grey_and_grey_arrays() -> None:
    bits = np.random.default_rng(0).random((20, 31)) < 0.5
    for kind in ("PNG", "TIFF", "BMP"):
        assert np.array_equal(load(file_of(Image.fromarray(bits), kind)).pixels[..., 1], bits * 255)
    grey = noise(channels=1)
    for source in (file_of(grey, "PNG"), grey):
        assert np.array_equal(load(source).pixels, np.stack([grey] * 3, axis=-1))


def test_transparent_parts_lie_on_white() -> None:
    rgba = noise(channels=4)
    alpha = rgba[..., 3:] / 255
    expected = rgba[..., :3] * alpha + 255 * (1 - alpha)
    for source in (file_of(rgba, "PNG"), file_of(rgba, "TIFF"), Image.fromarray(rgba)):
        assert np.abs(load(source).pixels - expected).max() <= 1
    lossless = load(file_of(rgba, "WEBP", lossless=True, exact=True)).pixels
    assert np.abs(lossless - expected).max() <= 1
    grey = rgba[..., [0, 3]]
    expected = np.repeat(grey[..., :1] * alpha + 255 * (1 - alpha), 3, axis=2)
    assert np.abs(load(file_of(Image.fromarray(grey), "PNG")).pixels - expected).max() <= 1


def test_palettes_and_their_transparency() -> None:
    image = Image.new("P", (3, 1))
    image.putpalette([10, 20, 30, 40, 50, 60, 70, 80, 90])
    image.putdata([0, 1, 2])
    assert load(file_of(image, "PNG")).pixels.tolist() == [[[10, 20, 30], [40, 50, 60], [70, 80, 90]]]
    one = load(file_of(image, "PNG", transparency=1)).pixels
    assert one.tolist() == [[[10, 20, 30], [255, 255, 255], [70, 80, 90]]]
    many = load(file_of(image, "PNG", transparency=bytes([255, 0, 128]))).pixels
    assert many[0, :2].tolist() == [[10, 20, 30], [255, 255, 255]]
    assert np.abs(many[0, 2] - (np.array([70, 80, 90]) * 128 / 255 + 127)).max() <= 1
    assert load(file_of(image, "GIF", transparency=1)).pixels.tolist() == one.tolist()


@pytest.mark.parametrize("depth", [8, 16])
def test_the_one_transparent_grey_of_a_png(depth: int) -> None:
    row = np.array([7, 9], f">u{depth // 8}") * (257 if depth == 16 else 1)
    key = struct.pack(">H", int(row[1]))
    data = png_of(2, 1, depth, 0, b"\0" + row.astype(f">u{depth // 8}").tobytes(), (b"tRNS", key))
    assert load(data).pixels.tolist() == [[[7] * 3, [255] * 3]]


# Colour


def swapped_profile() -> bytes:
    """sRGB with the primaries of red and blue exchanged: its red is our blue."""
    data = bytearray(ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes())
    table = bytes(data[:1024])
    data[table.index(b"rXYZ") :][:4]
    red, blue = table.index(b"rXYZ"), table.index(b"bXYZ")
    data[red : red + 4], data[blue : blue + 4] = b"bXYZ", b"rXYZ"
    return bytes(data)


def grey_profile() -> bytes:
    """A grey profile of gamma 1.8, written by hand."""
    white = b"XYZ \0\0\0\0" + struct.pack(">3i", round(0.9642 * 65536), 65536, round(0.8249 * 65536))
    curve = b"curv\0\0\0\0" + struct.pack(">IHxx", 1, round(1.8 * 256))
    start = 128 + 4 + 2 * 12
    table = struct.pack(">I4sII4sII", 2, b"wtpt", start, len(white), b"kTRC", start + len(white), len(curve))
    body = table + white + curve
    header = struct.pack(">I4sI4s4s4s", 128 + len(body), b"\0" * 4, 0x02400000, b"mntr", b"GRAY", b"XYZ ")
    header = header.ljust(36, b"\0") + b"acsp"
    header = header.ljust(68, b"\0") + struct.pack(">3i", round(0.9642 * 65536), 65536, round(0.8249 * 65536))
    return header.ljust(128, b"\0") + body


def test_a_colour_profile_is_followed() -> None:
    pixels = noise()
    for kind in ("PNG", "TIFF"):
        got = load(file_of(pixels, kind, icc_profile=swapped_profile())).pixels
        assert np.abs(got.astype(int) - pixels[..., ::-1]).max() <= 2
    jpeg = load(file_of(smooth(), "JPEG", quality=97, icc_profile=swapped_profile())).pixels
    assert near(jpeg, smooth()[..., ::-1])


def test_the_profile_of_srgb_changes_nothing() -> None:
    profile = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
    assert np.array_equal(load(file_of(noise(), "PNG", icc_profile=profile)).pixels, noise())


def test_the_profile_holds_under_transparency_too() -> None:
    rgba = noise(channels=4)
    alpha = rgba[..., 3:] / 255
    expected = rgba[..., 2::-1] * alpha + 255 * (1 - alpha)
    assert np.abs(load(file_of(rgba, "PNG", icc_profile=swapped_profile())).pixels - expected).max() <= 3


def test_a_grey_profile_is_followed() -> None:
    ramp = np.arange(256, dtype=np.uint8).reshape(16, 16)
    light = (ramp / 255) ** 1.8
    expected = np.where(light <= 0.0031308, 12.92 * light, 1.055 * light ** (1 / 2.4) - 0.055) * 255
    got = load(file_of(ramp, "PNG", icc_profile=grey_profile())).pixels
    assert np.abs(got[..., 1] - expected).max() <= 1.5
    deep = Image.fromarray(ramp.astype(np.uint16) * 257)
    got = load(file_of(deep, "TIFF", icc_profile=grey_profile())).pixels
    assert np.abs(got[..., 1] - expected).max() <= 1.5


@pytest.mark.parametrize("profile", [b"rubbish", swapped_profile()[:200], b"\0" * 128, grey_profile()])
def test_a_broken_or_foreign_profile_is_ignored(profile: bytes) -> None:
    assert np.array_equal(load(file_of(noise(), "PNG", icc_profile=profile)).pixels, noise())


def test_cmyk_also_as_adobe_writes_it() -> None:
    inks = noise(32, 48, channels=4)
    ink = inks / 255
    expected = 255 * (1 - ink[..., :3]) * (1 - ink[..., 3:])
    tiff = load(file_of(Image.fromarray(inks, "CMYK"), "TIFF")).pixels
    assert np.abs(tiff - expected).max() <= 2
    flat = np.broadcast_to(np.array([200, 30, 90, 40], np.uint8), (32, 48, 4))
    data = file_of(Image.fromarray(np.ascontiguousarray(flat), "CMYK"), "JPEG", quality=100)
    assert b"Adobe" in data  # which means that the inks in the file are inverted
    colour = 255 * (1 - np.array([200, 30, 90]) / 255) * (1 - 40 / 255)
    assert np.abs(load(data).pixels - colour).max() <= 4


def test_lab_and_ycbcr() -> None:
    lab = np.zeros((8, 8, 3), np.uint8)
    lab[..., 0] = 136  # L* = 53.4, a = b = 0: the grey of sRGB 127
    image = Image.frombytes("LAB", (8, 8), lab.tobytes())
    assert np.abs(load(file_of(image, "TIFF")).pixels.astype(int) - 127).max() <= 3
    assert near(load(Image.fromarray(smooth()).convert("YCbCr")).pixels, smooth())


# Orientation and time


STORED = {  # how a camera stores the upright picture under each value of the EXIF orientation
    1: lambda u: u,
    2: lambda u: u[:, ::-1],
    3: lambda u: u[::-1, ::-1],
    4: lambda u: u[::-1],
    5: lambda u: u.swapaxes(0, 1),
    6: lambda u: np.rot90(u, 1),
    7: lambda u: np.rot90(u, 2).swapaxes(0, 1),
    8: lambda u: np.rot90(u, -1),
}


def exif_of(orientation: int | None = None, **tags: str) -> Image.Exif:
    exif = Image.Exif()
    if orientation is not None:
        exif[0x0112] = orientation
    if "DateTime" in tags:
        exif[0x0132] = tags["DateTime"]
    if "DateTimeOriginal" in tags:
        exif.get_ifd(0x8769)[0x9003] = tags["DateTimeOriginal"]
    return exif


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("kind", ["PNG", "WEBP", "TIFF", "JPEG"])
def test_pictures_are_turned_upright_and_left_alone_when_asked(kind: str, orientation: int) -> None:
    upright = smooth(90, 120)
    stored = np.ascontiguousarray(STORED[orientation](upright))
    options: dict[str, Any] = {"WEBP": {"lossless": True}, "JPEG": {"quality": 97}}.get(kind, {})
    data = file_of(stored, kind, exif=exif_of(orientation), **options)
    picture = load(data)
    assert (picture.width, picture.height) == (120, 90)
    assert near(picture.pixels, upright) if kind == "JPEG" else np.array_equal(picture.pixels, upright)
    as_stored = load(data, upright=False)
    assert (as_stored.width, as_stored.height) == (stored.shape[1], stored.shape[0])
    assert near(as_stored.pixels, stored) if kind == "JPEG" else np.array_equal(as_stored.pixels, stored)
    assert near(load(Image.open(io.BytesIO(data))).pixels, upright)


@pytest.mark.parametrize("orientation", [1, 3, 6, 8])
def test_avif_and_heic_are_turned_upright(orientation: int) -> None:
    upright = smooth(90, 120)
    stored = np.ascontiguousarray(STORED[orientation](upright))
    assert near(load(file_of(stored, "AVIF", exif=exif_of(orientation), quality=95)).pixels, upright)
    assert near(load(heic_of(stored, exif=exif_of(orientation).tobytes(), quality=95)).pixels, upright)


@pytest.mark.parametrize("orientation", [0, 9, 65535])
def test_an_orientation_that_does_not_exist_turns_nothing(orientation: Any) -> None:
    assert np.array_equal(load(file_of(noise(), "PNG", exif=exif_of(orientation))).pixels, noise())


@pytest.mark.parametrize(
    "exif", [b"Exif\0\0", b"rubbish", b"Exif\0\0II*\0\xff\xff\xff\xff", b"Exif\0\0MM\0*\0\0\0\x08\xff\xff"]
)
def test_broken_exif_is_no_reason_to_lose_the_picture(exif: bytes) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        picture = load(file_of(smooth(), "JPEG", exif=exif, quality=95))
    assert near(picture.pixels, smooth()) and picture.taken is None


@pytest.mark.parametrize(
    ("tags", "taken"),
    [
        ({"DateTimeOriginal": "2024:05:06 12:13:14"}, "2024-05-06T12:13:14"),
        ({"DateTimeOriginal": "2024:05:06 12:13:14", "DateTime": "2025:01:01 00:00:00"}, "2024-05-06T12:13:14"),
        ({"DateTime": "2025:01:01 00:00:00"}, "2025-01-01T00:00:00"),
        ({"DateTimeOriginal": "0000:00:00 00:00:00", "DateTime": "2025:01:01 00:00:00"}, "2025-01-01T00:00:00"),
        ({"DateTimeOriginal": "2024-05-06T12:13:14"}, "2024-05-06T12:13:14"),
        ({"DateTimeOriginal": "0000:00:00 00:00:00"}, None),
        ({"DateTimeOriginal": "2024:02:30 12:13:14"}, None),
        ({"DateTimeOriginal": "    :  :     :  :  "}, None),
        ({"DateTimeOriginal": "yesterday"}, None),
        ({}, None),
    ],
)
def test_when_a_picture_was_taken(tags: dict[str, str], taken: str | None) -> None:
    for data in (
        file_of(smooth(), "JPEG", exif=exif_of(**tags).tobytes()),
        file_of(smooth(), "PNG", exif=exif_of(**tags).tobytes()),
        heic_of(smooth(), exif=exif_of(**tags).tobytes()),
    ):
        assert load(data).taken == taken


# RAW


def dng_of(preview: bytes, width: int, height: int, orientation: int) -> bytes:
    """A DNG written by hand: a JPEG preview, and 256 x 256 sensor cells beside it."""
    cells = np.full((256, 256), 1000, "<u2").tobytes()
    one = struct.pack("<18i", *[1, 1, 0, 1, 0, 1, 0, 1, 1, 1, 0, 1, 0, 1, 0, 1, 1, 1])

    def short(*values: int) -> bytes:
        return struct.pack(f"<{len(values)}H", *values)

    def long(*values: int) -> bytes:
        return struct.pack(f"<{len(values)}I", *values)

    def folder(start: int, entries: list[tuple[int, int, int, bytes]]) -> bytes:
        table, far = short(len(entries)), b""
        for tag, kind, count, value in sorted(entries):
            if len(value) > 4:
                value, far = long(start + 6 + 12 * len(entries) + len(far)), far + value
            table += struct.pack("<HHI", tag, kind, count) + value.ljust(4, b"\0")
        return table + long(0) + far

    def first(sensor: int, jpeg: int) -> list[tuple[int, int, int, bytes]]:
        shape = [(254, 4, 1, long(1)), (256, 4, 1, long(width)), (257, 4, 1, long(height)), (278, 4, 1, long(height))]
        kind = [(258, 3, 3, short(8, 8, 8)), (259, 3, 1, short(7)), (262, 3, 1, short(6)), (277, 3, 1, short(3))]
        where = [(273, 4, 1, long(jpeg)), (279, 4, 1, long(len(preview))), (330, 4, 1, long(sensor))]
        camera = [(271, 2, 6, b"Maker\0"), (272, 2, 6, b"Model\0"), (274, 3, 1, short(orientation))]
        when = [(306, 2, 20, b"2024:05:06 12:13:14\0")]
        dng = [
            (50706, 1, 4, bytes((1, 4, 0, 0))),
            (50708, 2, 6, b"Model\0"),
            (50721, 10, 9, one),
            (50778, 3, 1, short(21)),
        ]
        return shape + kind + where + camera + when + dng

    def second(at: int) -> list[tuple[int, int, int, bytes]]:
        shape = [(254, 4, 1, long(0)), (256, 4, 1, long(256)), (257, 4, 1, long(256)), (278, 4, 1, long(256))]
        kind = [(258, 3, 1, short(16)), (259, 3, 1, short(1)), (262, 3, 1, short(32803)), (277, 3, 1, short(1))]
        where = [(273, 4, 1, long(at)), (279, 4, 1, long(len(cells)))]
        return shape + kind + where + [(33421, 3, 2, short(2, 2)), (33422, 1, 4, bytes((0, 1, 1, 2)))]

    sensor = 8 + len(folder(8, first(0, 0)))
    jpeg = sensor + len(folder(sensor, second(0)))
    at = jpeg + len(preview)
    return b"II*\0" + long(8) + folder(8, first(sensor, jpeg)) + folder(sensor, second(at)) + preview + cells


@pytest.mark.parametrize("orientation", [1, 3, 6, 8])
def test_the_preview_of_a_raw_file_turned_as_the_camera_was(orientation: int, tmp_path: Path) -> None:
    upright = smooth(90, 120)
    stored = np.ascontiguousarray(STORED[orientation](upright))
    data = dng_of(file_of(stored, "JPEG", quality=95), stored.shape[1], stored.shape[0], orientation)
    path = tmp_path / "photo.DNG"
    path.write_bytes(data)
    for picture in (load(path), load(data, name="upload.dng")):
        assert near(picture.pixels, upright)
        assert (picture.width, picture.height, picture.taken) == (120, 90, "2024-05-06T12:13:14")
    assert near(load(path, upright=False).pixels, stored)


def test_a_raw_preview_with_exif_of_its_own(tmp_path: Path) -> None:
    upright = smooth(90, 120)
    stored = np.ascontiguousarray(STORED[6](upright))
    exif = exif_of(DateTimeOriginal="2023:01:02 03:04:05")
    jpeg = file_of(stored, "JPEG", quality=95, exif=exif)
    jpeg = jpeg[:2] + jpeg[20:]  # cameras write no JFIF header before their EXIF
    data = dng_of(jpeg, stored.shape[1], stored.shape[0], 6)
    picture = load(data, name="photo.nef")
    assert near(picture.pixels, upright) and picture.taken == "2023-01-02T03:04:05"


def test_raw_names_without_raw_inside(tmp_path: Path) -> None:
    text = "not a RAW file that can be read (Unsupported file format or not RAW file)"
    assert reason(b"just text" * 1000, name="a.nef") == text
    assert "not a RAW file" in reason(file_of(noise(), "PNG"), name="a.cr2")
    assert reason(b"", name="a.dng") == "the file is empty"


# Bad input


def test_each_bad_file_has_its_own_reason(tmp_path: Path) -> None:
    jpeg = file_of(noise(200, 300), "JPEG")
    bad = {
        "empty.jpg": (b"", "the file is empty"),
        "text.jpg": (b"This is no photograph.", "not a picture (none of JPEG, PNG"),
        "half.jpg": (jpeg[: len(jpeg) // 2], "a truncated JPEG file"),
        "head.jpg": (jpeg[:30], "JPEG file"),
        "half.png": (file_of(noise(), "PNG")[:9000], "a truncated PNG file"),
        "head.png": (b"\x89PNG\r\n\x1a\n", "PNG file"),
        "half.webp": (file_of(noise(), "WEBP")[:3000], "WEBP file"),
        "half.tif": (file_of(noise(), "TIFF")[:9000], "a truncated TIFF file"),
        "half.bmp": (file_of(noise(), "BMP")[:9000], "a truncated BMP file"),
        "half.gif": (file_of(Image.fromarray(noise()).convert("P"), "GIF")[:3000], "a truncated GIF file"),
        "half.avif": (file_of(noise(), "AVIF")[:3000], "AVIF file"),
        "half.heic": (heic_of(noise())[:3000], "HEIF file"),
        "page.jpg": (b"<!DOCTYPE html><html>", "not a picture"),
    }
    for name, (data, expected) in bad.items():
        path = tmp_path / name
        path.write_bytes(data)
        assert expected in reason(path), name
        with pytest.raises(PictureError, match=f"{name}: "):
            load(path)


def test_paths_that_are_no_files(tmp_path: Path) -> None:
    assert reason(tmp_path / "none.jpg") == "no such file"
    assert reason(tmp_path / "none" / "a.jpg") == "no such file"
    assert reason(tmp_path) == "a folder, not a picture"
    assert reason("a\0b.jpg") == "embedded null byte"
    pipe = tmp_path / "pipe.jpg"
    os.mkfifo(pipe)
    assert reason(pipe) == "not a regular file"
    loop = tmp_path / "loop.jpg"
    loop.symlink_to(loop)
    assert "symbolic links" in reason(loop)
    huge = tmp_path / "huge.jpg"
    with huge.open("wb") as file:
        file.truncate(5 * 1024**3)
    assert reason(huge) == "too large: a file of more than 2 GiB"


def test_a_file_without_permission(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "secret.jpg"
    path.write_bytes(file_of(noise(), "JPEG"))
    path.chmod(0)
    if os.access(path, os.R_OK):  # root may read everything

        def refuse(*_: object) -> int:
            raise PermissionError(13, "Permission denied")

        monkeypatch.setattr(formats.os, "open", refuse)
    assert reason(path) == "no permission to read it"


def test_names_that_cannot_be_printed_stay_on_one_line(tmp_path: Path) -> None:
    path = os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9 \n.png")
    with pytest.raises(PictureError) as caught:
        load(path)
    assert str(caught.value).encode().endswith(b"/caf\\udce9 \\n.png: no such file")
    Path(path).write_bytes(file_of(noise(), "PNG"))
    assert np.array_equal(load(path).pixels, noise())


@pytest.mark.parametrize(
    "source",
    [
        noise().astype(np.float32),
        noise(channels=4),
        noise(channels=2),
        noise()[None],
        np.zeros((0, 5, 3), np.uint8),
        np.zeros((), np.uint8),
        Image.new("RGB", (0, 7)),
        3,
        None,
        ["a.jpg"],
        io.StringIO("text"),
    ],
)
def test_sources_that_are_no_pictures(source: Any) -> None:
    with pytest.raises(PictureError, match=r"^picture: "):
        load(source)


def test_unnamed_sources_are_called_as_the_caller_says(tmp_path: Path) -> None:
    with pytest.raises(PictureError, match=r"^picture: the file is empty$"):
        load(b"")
    with pytest.raises(PictureError, match=r"^<upload>: the file is empty$"):
        load(io.BytesIO(), name="<upload>")
    path = tmp_path / "a.jpg"
    path.touch()
    with path.open("rb") as file, pytest.raises(PictureError, match=r"a\.jpg: the file is empty$"):
        load(file)


def test_the_error_survives_a_trip_through_a_process_pool() -> None:
    import pickle

    error = pickle.loads(pickle.dumps(PictureError("a.jpg", "no such file")))  # noqa: S301
    assert (str(error), error.name, error.reason) == ("a.jpg: no such file", "a.jpg", "no such file")


# The guard


HUGE = png_of(50_000, 50_000, 8, 2, b"\0" * 1000)


def test_a_bomb_is_refused_without_its_memory(tmp_path: Path) -> None:
    path = tmp_path / "bomb.png"
    path.write_bytes(HUGE)
    program = f"""
import resource
from crow.extract.images import PictureError, load
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
try:
    load({str(path)!r})
except PictureError as error:
    print(error)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""
    limit = 2 * 1024**3  # of address space; the pixels would take 7.5 GB
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"PYTHONPATH": str(Path(formats.__file__).parents[2]), "OMP_NUM_THREADS": "1"},
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (limit, limit)),
    )
    line, grown = done.stdout.splitlines()
    assert line == f"{path}: too large: 50000 x 50000 is 2,500 megapixels, the limit is 250"
    assert int(grown) < 20_000  # kB
    assert done.stderr == ""


@pytest.mark.parametrize("kind", ["PNG", "TIFF", "BMP", "GIF", "JPEG", "WEBP", "AVIF", "HEIC"])
def test_every_format_is_guarded_from_its_header(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    data = heic_of(smooth()) if kind == "HEIC" else file_of(smooth(), kind)
    monkeypatch.setattr(formats, "MAX_PIXELS", 8_000)
    monkeypatch.setattr(Image.Image, "load", lambda self: pytest.fail("pixels were asked for"))
    assert reason(data) == "too large: 128 x 96 is 0 megapixels, the limit is 0"


@pytest.mark.parametrize("kind", ["PNG", "TIFF", "BMP", "GIF", "JPEG", "AVIF", "HEIC"])
def test_pillows_own_guard_is_not_heard(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    data = heic_of(smooth()) if kind == "HEIC" else file_of(smooth(), kind)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for limit in (100, 10_000):  # beyond twice its limit Pillow raises, beyond it Pillow warns
            monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", limit)
            assert prepare(data, View(), box=(0, 0, 120, 90)).pixels.shape == (90, 120, 3)


def test_webp_beyond_pillows_limit_is_a_reason_too(monkeypatch: pytest.MonkeyPatch) -> None:
    data = file_of(smooth(), "WEBP")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
    try:
        assert near(load(data).pixels, smooth())  # Pillow 11 has no limit here
    except PictureError as error:
        assert error.reason.startswith("too large: ")


# Crop


BOXES = st.tuples(*[st.floats(-40, 140) for _ in range(4)])


@settings(deadline=None)
@given(BOXES)
def test_crop_inside_is_a_slice_and_past_the_border_is_what_pillow_does(box: tuple[float, float, float, float]) -> None:
    pixels = noise(70, 90) | 1  # never black
    xmin, ymin, xmax, ymax = box
    if xmin >= xmax or ymin >= ymax or xmax <= 0 or ymax <= 0 or xmin >= 90 or ymin >= 70:
        for outside in ("refuse", "black"):
            with pytest.raises(PictureError):
                crop(pixels, box, outside=outside)  # type: ignore[arg-type]
        return
    cut = crop(pixels, box)
    left, top, right, bottom = (round(max(v, 0)) for v in box)
    if min(right, 90) > left and min(bottom, 70) > top:
        assert np.array_equal(cut, pixels[top:bottom, left:right])
    assert cut.size and (cut > 0).all()
    left, top, right, bottom = map(round, box)
    if min(right, 90) > max(left, 0) and min(bottom, 70) > max(top, 0):
        assert np.array_equal(crop(pixels, box, "black"), np.asarray(Image.fromarray(pixels).crop(box)))


def test_crop_gives_at_least_one_pixel_of_the_picture() -> None:
    pixels = noise(10, 10)
    assert np.array_equal(crop(pixels, (9.6, 9.6, 9.9, 9.9)), pixels[9:, 9:])
    assert np.array_equal(crop(pixels, (3.1, 4.1, 3.2, 4.2)), pixels[4:5, 3:4])
    assert np.array_equal(crop(pixels, (-5, -5, 0.2, 0.2)), pixels[:1, :1])
    assert np.array_equal(crop(pixels, (9.7, 0, 50, 10)), pixels[:, 9:])


def test_crop_refuses_boxes_that_make_no_sense() -> None:
    pixels = noise(10, 10)
    for box in ((5, 5, 5, 9), (6, 0, 5, 9), (float("nan"), 0, 5, 5), (0, 0, float("inf"), 5)):
        with pytest.raises(PictureError, match=r"^picture: the box .* is empty$"):
            crop(pixels, box)
    with pytest.raises(PictureError, match=r"^q\.jpg: the box 10, 0, 20, 5 lies outside the picture of 10 x 10$"):
        crop(pixels, (10, 0, 20, 5), name="q.jpg")
    for box in ((1, 2, 3), "abcd", (1, 2, 3, "x"), None):
        with pytest.raises(PictureError, match="four numbers"):
            crop(pixels, box)  # type: ignore[arg-type]
    with pytest.raises(PictureError, match="too large"):
        crop(pixels, (0, 0, 1e6, 1e6), "black")
    with pytest.raises(ValueError, match="refuse, black"):
        crop(pixels, (0, 0, 5, 5), "white")  # type: ignore[arg-type]


def test_crop_leaves_the_callers_array_alone() -> None:
    pixels = noise()
    cut = crop(pixels, (0, 0, 90, 70))
    cut[:] = 0
    assert np.array_equal(pixels, noise())


# Resize


@pytest.mark.parametrize(
    ("width", "height", "rule", "expected"),
    [
        (600, 400, "original", (600, 400)),
        (600, 400, "640", (600, 400)),  # nothing is enlarged
        (6000, 4000, "640", (640, 427)),
        (4000, 6000, "640", (427, 640)),
        (600, 400, "586x586", (586, 586)),
        (100, 50, "586x586", (586, 586)),  # but a square is a square
        (600, 400, "32x32", (64, 64)),
        (100, 50, "original", (128, 64)),  # but a short side below 64 is brought to 64
        (1, 1, "original", (64, 64)),
        (63, 63, "640", (64, 64)),
        (4000, 600, "320", (427, 64)),  # even where the long side then passes the size asked for
        (1, 5000, "original", (64, 5000)),  # a long side is not stretched past 4096, nor shortened for that
        (1000, 1, "original", (4096, 64)),
        (20000, 2, "640", (4096, 64)),
        (64, 64, "original", (64, 64)),
    ],
)
def test_the_size_rules(width: int, height: int, rule: str, expected: tuple[int, int]) -> None:
    pixels = noise(height, width) if width * height < 1e6 else np.zeros((height, width, 3), np.uint8)
    got = resize(pixels, Size.parse(rule))
    assert (got.shape[1], got.shape[0]) == expected
    assert (got is pixels) == (expected == (width, height))


def test_resizing_is_bicubic_with_antialias() -> None:
    """Against the definition: a cubic of a = -1/2, widened by the scale, its weights summing to one."""
    pixels = noise(64, 200)

    def weights(size: int, target: int) -> Array:
        scale = max(size / target, 1)
        x = np.abs((np.arange(size) + 0.5)[None] - ((np.arange(target) + 0.5) * size / target)[:, None]) / scale
        w = np.where(x < 1, 1.5 * x**3 - 2.5 * x**2 + 1, np.where(x < 2, -0.5 * x**3 + 2.5 * x**2 - 4 * x + 2, 0))
        return w / w.sum(axis=1, keepdims=True)

    across = np.einsum("wx,hxc->hwc", weights(200, 150), pixels)
    expected = np.einsum("hy,ywc->hwc", weights(64, 150), across.clip(0, 255).round())
    got = resize(pixels, Size("square", 150))
    assert np.abs(got - expected.clip(0, 255)).max() <= 1.5


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 3000), st.integers(1, 3000), st.sampled_from(["original", "100", "640", "80x80"]))
def test_no_size_explodes(width: int, height: int, rule: str) -> None:
    got = resize(np.zeros((height, width, 3), np.uint8), Size.parse(rule))
    assert min(got.shape[:2]) >= min(64, *got.shape[:2]) and min(got.shape[:2]) >= 64
    assert max(got.shape[:2]) <= max(4096, width, height)


# Prepare


def test_prepare_is_load_crop_resize() -> None:
    pixels = noise(400, 600)
    data = file_of(np.ascontiguousarray(STORED[6](pixels)), "PNG", exif=exif_of(6))
    picture = prepare(data, View(size=Size("largest", 100)), box=(100, 50, 300, 250))
    assert (picture.width, picture.height) == (600, 400)
    assert np.array_equal(picture.pixels, resize(crop(pixels, (100, 50, 300, 250)), Size("largest", 100)))
    stored = prepare(data, View(size=Size(), upright=False))
    assert (stored.width, stored.height) == (400, 600)
    assert np.array_equal(stored.pixels, STORED[6](pixels))


def test_prepare_names_the_file_whose_box_is_wrong(tmp_path: Path) -> None:
    path = tmp_path / "q.png"
    path.write_bytes(file_of(noise(), "PNG"))
    with pytest.raises(PictureError, match=r"q\.png: the box 5, 5, 5, 5 is empty$"):
        prepare(path, View(), box=(5, 5, 5, 5))


def test_read_hands_out_the_bytes_that_load_takes(tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    path.write_bytes(file_of(noise(), "PNG"))
    assert read(path) == read(path.read_bytes()) == path.read_bytes()
    assert np.array_equal(load(read(path), name=path).pixels, noise())


# Threads, and anything at all


def test_many_threads_read_the_same() -> None:
    files = [file_of(smooth(60 + i, 90), kind, **options) for i in range(12) for kind, options in (
        ("JPEG", {"icc_profile": swapped_profile()}), ("PNG", {}), ("WEBP", {}), ("TIFF", {}), ("AVIF", {}))]  # fmt: skip
    alone = [load(data).pixels for data in files]
    with ThreadPoolExecutor(8) as pool:
        for one, other in zip(alone, pool.map(lambda data: load(data).pixels, files), strict=True):
            assert np.array_equal(one, other)


SEEDS = {
    "jpg": file_of(
        smooth(24, 32), "JPEG", exif=exif_of(6, DateTime="2024:01:01 00:00:00"), icc_profile=swapped_profile()
    ),
    "png": file_of(noise(24, 32, 4), "PNG", icc_profile=swapped_profile()),
    "gif": file_of(Image.fromarray(smooth(24, 32)).convert("P"), "GIF"),
    "tif": file_of(smooth(24, 32), "TIFF", compression="tiff_lzw", exif=exif_of(8)),
    "bmp": file_of(smooth(24, 32), "BMP"),
    "webp": file_of(smooth(24, 32), "WEBP"),
    "avif": file_of(smooth(24, 32), "AVIF"),
    "dng": dng_of(file_of(smooth(24, 32), "JPEG"), 32, 24, 6)[:4000],
}


def check_anything(data: bytes, name: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            picture = load(data, name=name)
        except PictureError as error:
            assert "\n" not in str(error)
        else:
            assert picture.pixels.shape == (picture.height, picture.width, 3) and picture.pixels.dtype == np.uint8


@settings(max_examples=200, deadline=None)
@given(
    st.binary(max_size=300),
    st.sampled_from(["a.jpg", "a.nef"]),
    st.sampled_from([b"", *(d[:16] for d in SEEDS.values())]),
)
def test_random_bytes_raise_nothing_else(data: bytes, name: str, start: bytes) -> None:
    check_anything(start + data, name)


@settings(max_examples=400, deadline=None)
@given(
    st.sampled_from(sorted(SEEDS)),
    st.lists(st.tuples(st.floats(0, 1), st.binary(max_size=6)), max_size=5),
    st.floats(0.1, 1.5),
)
def test_mutated_files_raise_nothing_else(kind: str, edits: list[tuple[float, bytes]], keep: float) -> None:
    data = bytearray(SEEDS[kind])
    for where, new in edits:
        at = int(where**3 * len(data))  # headers more often than pixels
        data[at : at + len(new)] = new
    check_anything(bytes(data[: int(keep * len(data))]), f"a.{kind}")


# Large pictures


@pytest.mark.parametrize("mode", ["1", "L", "P", "LA", "RGBA", "CMYK", "LAB", "I;16", "I", "F", "RGB"])
@pytest.mark.parametrize("with_profile", [False, True])
def test_a_large_picture_is_made_srgb_in_bands_and_comes_out_the_same(
    mode: str, with_profile: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    random = np.random.default_rng(4)
    deep = {"I;16": random.integers(0, 65536, (61, 47), np.uint16), "I": random.integers(-9, 9999, (61, 47), np.int32)}
    deep["F"] = random.normal(3, 9, (61, 47)).astype(np.float32)
    image = Image.fromarray(deep[mode]) if mode in deep else Image.fromarray(noise(61, 47, 4)).convert(mode)
    if with_profile:
        image.info["icc_profile"] = swapped_profile()
    whole = colour.to_rgb(image.copy())
    monkeypatch.setattr(colour, "BAND", 400)
    assert np.array_equal(np.asarray(colour.to_rgb(image)), np.asarray(whole))


def test_few_bytes_that_unfold_to_a_huge_picture_are_refused_and_a_photograph_of_that_size_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    flat, photograph = Image.new("RGB", (3000, 2000)), Image.fromarray(noise(2000, 3000))
    monkeypatch.setattr(formats, "FREE_BYTES", 40_000_000)
    for kind in ("PNG", "JPEG", "WEBP", "TIFF"):
        options = {"compression": "tiff_adobe_deflate"} if kind == "TIFF" else {}
        said = reason(file_of(flat, kind, **options))
        assert said.startswith("too large: 3000 x 2000 in a file of") and said.endswith("hold no photograph")
        assert load(file_of(photograph, kind, **options)).pixels.shape == (2000, 3000, 3)
