"""Pictures as pixels: read, turn upright, crop, resize; every failure is a PictureError that says why.

What is read: JPEG, PNG, WebP, TIFF, BMP, GIF and AVIF, HEIC, and the preview inside camera RAW files; of an
animation the first frame. Colour profiles, CMYK, grey, palettes, transparency (on white) and 16 bits all end as sRGB.
"""

from __future__ import annotations

import re
from datetime import datetime
from pathlib import Path
from typing import Any, BinaryIO, Literal

import numpy as np
from PIL import Image

from crow.extract.colour import to_rgb
from crow.extract.formats import EXTENSIONS, MAX_PIXELS, RAW_EXTENSIONS, broken, guard, name_of, open_picture, read
from crow.extract.picture import Picture, PictureError, Pixels
from crow.extract.walk import Entry, entries, walk
from crow.recipe import Size, View

__all__ = [
    "EXTENSIONS",
    "MAX_PIXELS",
    "Box",
    "Entry",
    "Picture",
    "PictureError",
    "Source",
    "crop",
    "entries",
    "facts",
    "load",
    "prepare",
    "prepared",
    "read",
    "resize",
    "target",
    "walk",
]

Source = str | Path | bytes | BinaryIO | Image.Image | Pixels
Box = tuple[float, float, float, float]  # xmin, ymin, xmax, ymax

SHORT_SIDE = 64  # below this the network's maps shrink to a cell or two
LONG_SIDE = 4096  # as far as a long side is stretched to bring its short side to SHORT_SIDE
NETWORK_PIXELS = 32_000_000  # through VGG16 in float32 such a picture takes some 16 GB

_ORIENTATION, _DATE_TIME, _EXIF_IFD, _DATE_TIME_ORIGINAL = 0x0112, 0x0132, 0x8769, 0x9003
_UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
_BACK = _UPRIGHT | {6: Image.Transpose.ROTATE_90, 8: Image.Transpose.ROTATE_270}


def load(source: Source, upright: bool = True, name: str | Path | None = None) -> Picture:
    """The picture as (H, W, 3) uint8 sRGB, turned by its EXIF orientation unless `upright` is False.

    `name` stands in messages, and tells a RAW file, where there is no path. HEIC is always upright: it is turned
    inside the format itself.
    """
    image, taken = _open(source, upright, name_of(source, name))
    return Picture(np.array(image), image.width, image.height, taken)


def crop(
    pixels: Pixels, box: Box, outside: Literal["refuse", "black"] = "refuse", name: str | Path = "picture"
) -> Pixels:
    """The box of (H, W, 3), its edges rounded to whole pixels as Pillow does, at least one pixel: -> (h, w, 3).

    What lies past the border is cut away, or with "black" filled with black as Pillow does (and the paper's
    released code, which reads boxes too large). A box that is empty or has nothing of the picture is refused.
    """
    return np.array(_crop(_from_array(pixels, str(name)), box, outside, str(name)))


def resize(pixels: Pixels, size: Size, name: str | Path = "picture") -> Pixels:
    """(H, W, 3) -> (h, w, 3) by Pillow's bicubic with antialias; the same array where nothing changes."""
    if target(pixels.shape[1], pixels.shape[0], size) == (pixels.shape[1], pixels.shape[0]):
        return pixels
    return np.array(_resize(_from_array(pixels, str(name)), size, str(name)))


def prepare(source: Source, view: View, box: Box | None = None, name: str | Path | None = None) -> Picture:
    """The picture as a view wants it: `load`, `crop` to a box in pixels of the original, `resize`."""
    name = name_of(source, name)
    image, taken = _open(source, view.upright, name)
    part = image if box is None else _crop(image, box, "refuse", name)
    return Picture(np.array(_resize(part, view.size, name)), image.width, image.height, taken)


def prepared(source: Source, view: View, box: Box | None = None) -> Picture | PictureError:
    """What `prepare` gives, or why it gives nothing; pictures that no network has room for among them."""
    try:
        picture = prepare(source, view, box)
    except PictureError as error:
        return error
    except MemoryError:
        return PictureError(name_of(source), "not enough memory to read it")
    height, width = picture.pixels.shape[:2]
    if height * width > NETWORK_PIXELS:
        reason = f"{width} x {height} pixels are too many for the network: give a --size"
        return PictureError(name_of(source), reason)
    return picture


def _crop(image: Image.Image, box: Box, outside: str, name: str) -> Image.Image:
    if outside not in ("refuse", "black"):
        raise ValueError(f"no way named {outside!r} for what lies outside; there are: refuse, black")
    xmin, ymin, xmax, ymax = _checked_box(box, image.width, image.height, name)
    if outside == "refuse":
        xmin, ymin, xmax, ymax = max(xmin, 0), max(ymin, 0), min(xmax, image.width), min(ymax, image.height)
    (left, right), (top, bottom) = _whole(xmin, xmax, image.width), _whole(ymin, ymax, image.height)
    guard(right - left, bottom - top, name)
    part = Image.new("RGB", (right - left, bottom - top))
    part.paste(image, (-left, -top))
    return part


def _resize(image: Image.Image, size: Size, name: str) -> Image.Image:
    wanted = target(image.width, image.height, size)
    guard(*wanted, name)
    return image if wanted == image.size else image.resize(wanted, Image.Resampling.BICUBIC)


def target(width: int, height: int, size: Size) -> tuple[int, int]:
    """The size a picture is brought to; a long side is stretched with a tiny short one, but not past LONG_SIDE."""
    if size.rule == "square":
        return max(size.pixels, SHORT_SIDE), max(size.pixels, SHORT_SIDE)
    short, long = sorted((width, height))
    scale = min(1.0, size.pixels / long) if size.rule == "largest" else 1.0
    if short * scale < SHORT_SIDE:
        long = min(round(long * SHORT_SIDE / short), max(round(long * scale), LONG_SIDE))
        short = SHORT_SIDE
    else:
        short, long = round(short * scale), round(long * scale)
    return (short, long) if width < height else (long, short)


def _open(source: Source, upright: bool, name: str) -> tuple[Image.Image, str | None]:
    """The whole picture as an RGB image, and when it was taken."""
    try:
        if isinstance(source, np.ndarray):
            return _from_array(source, name), None
        if isinstance(source, Image.Image):
            return _from_image(source, upright, name)
        raw = Path(name).suffix.lower() in RAW_EXTENSIONS
        return _from_image(open_picture(read(source, name), name, raw), upright, name)
    except PictureError:
        raise
    except MemoryError:
        raise PictureError(name, "not enough memory to decode it") from None
    except Exception as error:
        raise PictureError(name, broken(None, error)) from error


def _from_array(array: Pixels, name: str) -> Image.Image:
    if array.dtype != np.uint8 or array.ndim not in (2, 3) or array.shape[2:] not in ((), (3,)):
        raise PictureError(name, f"an array of {array.dtype} {array.shape} is not (H, W, 3) or (H, W) of uint8")
    guard(array.shape[1], array.shape[0], name)
    return Image.fromarray(array).convert("RGB")


def _from_image(image: Image.Image, upright: bool, name: str) -> tuple[Image.Image, str | None]:
    guard(image.width, image.height, name)
    tiff = image.format == "TIFF"  # Pillow turns these upright by itself as they load
    orientation, taken = facts(image) if tiff else (1, None)
    _decode(image, name)
    if not tiff:
        orientation, taken = facts(image)
    turns = {} if tiff == upright else _UPRIGHT if upright else _BACK
    rgb = to_rgb(image)
    return (rgb.transpose(turns[orientation]) if orientation in turns else rgb), taken


def _decode(image: Image.Image, name: str) -> None:
    try:
        image.load()
    except MemoryError:
        raise
    except Exception as error:  # decoders raise anything at all on broken bytes
        raise PictureError(name, broken(image.format, error)) from error


def facts(image: Image.Image) -> tuple[int, str | None]:
    """The orientation (1 to 8) and when the picture was taken; what cannot be read counts as absent."""
    try:
        exif = image.getexif()
        orientation = exif.get(_ORIENTATION, 1)
        dates = exif.get_ifd(_EXIF_IFD).get(_DATE_TIME_ORIGINAL), exif.get(_DATE_TIME)
    except Exception:  # EXIF is often broken; the picture is not
        return 1, None
    return orientation, next((date for date in map(_date, dates) if date), None)


def _date(text: Any) -> str | None:
    """EXIF's "2024:05:06 12:13:14" in ISO form; None where it is no date (cameras without a clock write zeros)."""
    digits = re.fullmatch(r"(\d{4})[:/-](\d\d)[:/-](\d\d)[ T](\d\d):(\d\d):(\d\d)", str(text).strip(" \0"), re.ASCII)
    try:
        return datetime(*map(int, digits.groups())).isoformat() if digits else None  # type: ignore[arg-type]
    except ValueError:
        return None


def _checked_box(box: Box, width: int, height: int, name: str | Path) -> Box:
    try:
        xmin, ymin, xmax, ymax = map(float, box)
    except (TypeError, ValueError):
        raise PictureError(name, f"a box is four numbers xmin, ymin, xmax, ymax; not {box!r}") from None
    shown = f"the box {xmin:g}, {ymin:g}, {xmax:g}, {ymax:g}"
    if not np.isfinite((xmin, ymin, xmax, ymax)).all() or xmin >= xmax or ymin >= ymax:
        raise PictureError(name, f"{shown} is empty")
    if xmin >= width or ymin >= height or xmax <= 0 or ymax <= 0:
        raise PictureError(name, f"{shown} lies outside the picture of {width} x {height}")
    return xmin, ymin, xmax, ymax


def _whole(low: float, high: float, length: int) -> tuple[int, int]:
    """An interval in whole pixels: rounded (halves to even), but never nothing and never off the picture."""
    first, last = round(low), round(high)
    if min(last, length) > max(first, 0):
        return first, last
    first = min(max(int(low), 0), length - 1)
    return first, first + 1
