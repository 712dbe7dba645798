"""Sound pictures of every kind that is read, to be spoilt; and bombs, small files that unfold to huge pictures."""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pillow_heif
import tifffile
from PIL import Image, ImageCms

PHOTOS = Path(__file__).parents[3] / "shared" / "photos"


def encoded(image: Image.Image, kind: str, **options: Any) -> bytes:
    """A picture as the bytes of a file."""
    out = io.BytesIO()
    if kind == "HEIF":
        file = pillow_heif.from_pillow(image)
        file.add_from_pillow(image.rotate(90))
        file.save(out, **options)
    else:
        image.save(out, kind, **options)
    return out.getvalue()


def sound() -> dict[str, bytes]:
    """Name with extension -> bytes: every format, and most ways of writing it."""
    random = np.random.default_rng(5)
    small = Image.fromarray(random.integers(0, 256, (6, 8, 3), np.uint8)).resize((96, 64), Image.Resampling.BICUBIC)
    noisy = Image.fromarray(random.integers(0, 256, (40, 56, 4), np.uint8))
    deep = Image.fromarray(random.integers(0, 65536, (40, 56), np.uint16))
    exif = Image.Exif()
    exif[0x0112], exif[0x0132] = 6, "2024:05:06 12:13:14"
    exif.get_ifd(0x8769)[0x9003] = "2023:01:02 03:04:05"
    profile = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
    more: dict[str, Any] = {"exif": exif, "icc_profile": profile}
    frames: dict[str, Any] = {"save_all": True, "append_images": [small.rotate(90), small.rotate(180)]}
    made = {
        "plain.jpg": encoded(small, "JPEG", quality=90, **more),
        "progressive.jpeg": encoded(small, "JPEG", progressive=True, optimize=True),
        "cmyk.jpg": encoded(small.convert("CMYK"), "JPEG"),
        "grey.jpg": encoded(small.convert("L"), "JPEG", restart_marker_rows=1),
        "several.mpo": encoded(small, "MPO", **frames),
        "plain.png": encoded(noisy, "PNG", **more),
        "palette.png": encoded(small.convert("P"), "PNG", transparency=3),
        "deep.png": encoded(deep, "PNG"),
        "bits.png": encoded(small.convert("1"), "PNG"),
        "moving.png": encoded(small, "PNG", **frames),
        "lossy.webp": encoded(small, "WEBP", **more),
        "lossless.webp": encoded(noisy, "WEBP", lossless=True),
        "moving.webp": encoded(small, "WEBP", **frames),
        "moving.gif": encoded(small.convert("P"), "GIF", **frames),
        "plain.gif": encoded(small.convert("P"), "GIF", transparency=0),
        "plain.bmp": encoded(small, "BMP"),
        "palette.bmp": encoded(small.convert("P"), "BMP"),
        "plain.avif": encoded(small, "AVIF", **more),
        "moving.avif": encoded(small, "AVIF", **frames),
        "plain.heic": encoded(small, "HEIF"),
        "raw.dng": dng(encoded(small, "JPEG")),
    }
    for compression in ("none", "tiff_lzw", "tiff_adobe_deflate", "packbits", "jpeg"):
        made[f"{compression}.tif"] = encoded(
            small, "TIFF", compression=None if compression == "none" else compression, exif=exif
        )
    made["several.tiff"] = pages([small, small.rotate(180)])
    made["bits.tif"] = encoded(small.convert("1"), "TIFF", compression="group4")
    for name, options in {"tiled.tif": {"tile": (16, 16)}, "big.tif": {"bigtiff": True}, "float.tif": {}}.items():
        out = io.BytesIO()
        pixels = np.asarray(noisy)[..., :3]
        tifffile.imwrite(out, pixels[..., 0].astype(np.float32) if name == "float.tif" else pixels, **options)
        made[name] = out.getvalue()
    for path in sorted(PHOTOS.rglob("*.jpg"))[:3]:
        photo = Image.open(path)
        photo.thumbnail((160, 160))
        made[f"photo-{path.name}"] = encoded(photo, "JPEG", quality=70)
    return made


def pages(pictures: list[Image.Image]) -> bytes:
    """A TIFF with a page for each picture."""
    out = io.BytesIO()
    with tifffile.TiffWriter(out) as writer:
        for picture in pictures:
            writer.write(np.asarray(picture), contiguous=False, metadata=None)
    return out.getvalue()


def dng(preview: bytes) -> bytes:
    """The smallest RAW file: a TIFF folder that points to a preview, and says that it is a DNG."""
    entries = [
        (254, 4, 1, 1), (256, 4, 1, 96), (257, 4, 1, 64), (258, 3, 1, 8), (259, 3, 1, 7), (262, 3, 1, 6),
        (273, 4, 1, 8 + 2 + 12 * 10 + 4), (277, 3, 1, 3), (279, 4, 1, len(preview)), (50706, 1, 4, 0x0401),
    ]  # fmt: skip
    table = b"".join(struct.pack("<HHII", *entry) for entry in entries)
    return b"II*\0" + struct.pack("<I", 8) + struct.pack("<H", len(entries)) + table + bytes(4) + preview


def png(width: int, height: int, depth: int, colour: int, rows: bytes, *chunks: tuple[bytes, bytes]) -> bytes:
    """A PNG by hand; `rows` are compressed already."""
    header = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0)
    parts = [(b"IHDR", header), *chunks, (b"IDAT", rows), (b"IEND", b"")]
    whole = (struct.pack(">I", len(b)) + k + b + struct.pack(">I", zlib.crc32(k + b)) for k, b in parts)
    return b"\x89PNG\r\n\x1a\n" + b"".join(whole)


def squeezed(length: int) -> bytes:
    """So many zeros, compressed, without ever holding them."""
    packer, out = zlib.compressobj(9), b""
    piece = bytes(1 << 20)
    for _ in range(length >> 20):
        out += packer.compress(piece)
    return out + packer.compress(bytes(length & 0xFFFFF)) + packer.flush()


def tiff(side: int, bits: int, samples: int, kind: int = 1) -> bytes:
    """A TIFF of one deflated strip of zeros; kind 3 is floating point."""
    strip = squeezed(side * side * bits // 8 * samples)
    photometric = 2 if samples > 1 else 1
    values = [
        (256, 4, side), (257, 4, side), (258, 3, bits), (259, 3, 8), (262, 3, photometric), (273, 4, 200),
        (277, 3, samples), (278, 4, side), (279, 4, len(strip)), (339, 3, kind),
    ]  # fmt: skip
    table = b"".join(struct.pack("<HHII", tag, form, 1, value) for tag, form, value in values)
    return (b"II*\0" + struct.pack("<IH", 8, len(values)) + table + bytes(4)).ljust(200, b"\0") + strip


def bombs() -> Iterator[tuple[str, Callable[[], bytes]]]:
    """(name, what makes its bytes), from a header alone to whole pictures just below every limit."""
    nothing = squeezed(100)
    for side in (15_000, 30_000, 65_500, 2**31 - 1):
        yield f"header-{side}.png", lambda side=side: png(side, side, 8, 6, nothing)
        yield f"header-{side}.bmp", lambda side=side: b"BM" + struct.pack("<IHHIIiiHHIIiiII", 1000, 0, 0, 54, 40, side, side, 1, 24, 0, 0, 0, 0, 0, 0)  # fmt: skip
        yield f"header-{side}.gif", lambda side=side: b"GIF89a" + struct.pack("<HHBBB", side & 0xFFFF, side & 0xFFFF, 0x80, 0, 0) + bytes(6) + b"," + struct.pack("<HHHHB", 0, 0, side & 0xFFFF, side & 0xFFFF, 0) + b"\x02\x02\x4c\x01\x00;"  # fmt: skip
    yield "grey-1-bit.png", lambda: png(15_800, 15_800, 1, 0, squeezed(15_800 * (15_800 // 8 + 1)))
    yield "palette.png", lambda: png(15_800, 15_800, 8, 3, squeezed(15_800 * 15_801), (b"PLTE", bytes(range(96))), (b"tRNS", bytes(8)))  # fmt: skip
    yield "colour.png", lambda: png(15_800, 15_800, 8, 2, squeezed(15_800 * (3 * 15_800 + 1)))
    yield "alpha-16-bit.png", lambda: png(15_800, 15_800, 16, 6, squeezed(15_800 * (8 * 15_800 + 1)))
    yield "deep-grey.png", lambda: png(15_800, 15_800, 16, 0, squeezed(15_800 * (2 * 15_800 + 1)))
    yield "text.png", lambda: png(8, 8, 8, 0, squeezed(72), (b"zTXt", b"Comment\0\0" + squeezed(1 << 30)))
    yield "profile.png", lambda: png(8, 8, 8, 2, squeezed(200), (b"iCCP", b"icc\0\0" + squeezed(1 << 30)))
    yield "grey.tif", lambda: tiff(15_800, 8, 1)
    yield "colour.tif", lambda: tiff(12_000, 8, 3)
    yield "float.tif", lambda: tiff(15_800, 32, 1, 3)
    yield "whole.tif", lambda: tiff(15_800, 32, 1, 2)
    for kind, side, mode in (("JPEG", 15_800, "RGB"), ("JPEG", 15_800, "CMYK"), ("GIF", 15_800, "P"), ("WEBP", 13_000, "RGB")):  # fmt: skip
        yield (
            f"flat-{mode}.{kind.lower()}",
            lambda kind=kind, side=side, mode=mode: encoded(Image.new(mode, (side, side)), kind),
        )
    yield "flat-progressive.jpg", lambda: encoded(Image.new("RGB", (15_800, 15_800)), "JPEG", progressive=True)
    yield from ((f"frames.{kind}", partial(moving, kind)) for kind in ("gif", "webp", "png", "tiff"))
    yield "loop.tiff", loop


def moving(kind: str) -> bytes:
    """Ten thousand frames."""
    if kind == "gif":
        frame = encoded(Image.new("P", (16, 16), 3), "GIF")
        return frame[:-1] + frame[13 + 3 * 2 ** ((frame[10] & 7) + 1) : -1] * 9_999 + b";"
    little = [Image.new("RGB", (8, 8), (i % 256, i // 256, 0)) for i in range(10_000)]
    return (
        pages(little) if kind == "tiff" else encoded(little[0], kind.upper(), save_all=True, append_images=little[1:])
    )


def loop() -> bytes:
    """A TIFF whose next page is itself."""
    data = bytearray(encoded(Image.new("RGB", (8, 8)), "TIFF"))
    (folder,) = struct.unpack_from("<I", data, 4)
    (entries,) = struct.unpack_from("<H", data, folder)
    struct.pack_into("<I", data, folder + 2 + 12 * entries, folder)
    return bytes(data)
