"""Pictures as pixels: read, turn upright, crop, resize; every failure is a PictureError that says why.

What is read: JPEG, PNG, WebP, TIFF, BMP, GIF and AVIF, HEIC, and the preview inside camera RAW files; of an
animation the first frame. Colour profiles, CMYK, grey, palettes, transparency (on white) and 16 bits all end as sRGB.
"""

from __future__ import annotations

import os
import re
import stat
from datetime import datetime
from pathlib import Path
from typing import Any, BinaryIO, Literal

import numpy as np
from PIL import Image

from crow.extract.colour import to_rgb
from crow.extract.formats import EXTENSIONS, MAX_BYTES, MAX_PIXELS, RAW_EXTENSIONS, guard, open_picture
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
    "load",
    "prepare",
    "read",
    "resize",
    "walk",
]

Source = str | Path | bytes | BinaryIO | Image.Image | Pixels
Box = tuple[float, float, float, float]  # xmin, ymin, xmax, ymax

SHORT_SIDE = 64  # below this the network's maps shrink to a cell or two
LONG_SIDE = 4096  # as far as a long side is stretched to bring its short side to SHORT_SIDE

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
    """The picture as (H, W, 3) uint8 sRGB; `name` stands in messages, and tells a RAW file, where there is no path."""
    name = _name(source) if name is None else os.fspath(name)
    try:
        if isinstance(source, np.ndarray):
            return _from_array(source, name)
        if isinstance(source, Image.Image):
            return _from_image(source, upright, name)
        raw = Path(name).suffix.lower() in RAW_EXTENSIONS
        return _from_image(open_picture(read(source, name), name, raw), upright, name)
    except PictureError:
        raise
    except MemoryError:
        raise PictureError(name, "not enough memory to decode it") from None
    except Exception as error:  # decoders raise anything at all on broken bytes
        raise PictureError(name, _reason(error)) from error


def read(source: str | Path | bytes | BinaryIO, name: str | None = None) -> bytes:
    """The bytes of a file, read once; a folder, a pipe and a file beyond MAX_BYTES are refused."""
    name = _name(source) if name is None else name
    if isinstance(source, bytes | bytearray | memoryview):
        return bytes(source)
    if isinstance(source, str | Path):
        try:
            with open(source, "rb", opener=_open_regular) as file:
                return _read_all(file, name)
        except (OSError, ValueError) as error:
            raise error if isinstance(error, PictureError) else PictureError(name, _os_reason(error)) from None
    if hasattr(source, "read"):
        return _read_all(source, name)
    raise PictureError(name, f"a {type(source).__name__} is no picture, nor a path, bytes or file that holds one")


def crop(
    pixels: Pixels, box: Box, outside: Literal["refuse", "black"] = "refuse", name: str | Path = "picture"
) -> Pixels:
    """The box of (H, W, 3), its edges rounded to whole pixels as Pillow does, at least one pixel: -> (h, w, 3).

    What lies past the border is cut away, or with "black" filled with black as Pillow does (and the paper's
    released code, which reads boxes too large). A box that is empty or has nothing of the picture is refused.
    """
    if outside not in ("refuse", "black"):
        raise ValueError(f"no way named {outside!r} for what lies outside; there are: refuse, black")
    height, width = pixels.shape[:2]
    xmin, ymin, xmax, ymax = _checked_box(box, width, height, name)
    if outside == "refuse":
        xmin, ymin, xmax, ymax = max(xmin, 0), max(ymin, 0), min(xmax, width), min(ymax, height)
    (left, right), (top, bottom) = _whole(xmin, xmax, width), _whole(ymin, ymax, height)
    inside = pixels[max(top, 0) : bottom, max(left, 0) : right]
    if (left, top) == (max(left, 0), max(top, 0)) and inside.shape[:2] == (bottom - top, right - left):
        return inside.copy()
    guard(right - left, bottom - top, str(name))
    canvas = np.zeros((bottom - top, right - left, *pixels.shape[2:]), pixels.dtype)
    y, x = max(-top, 0), max(-left, 0)
    canvas[y : y + inside.shape[0], x : x + inside.shape[1]] = inside
    return canvas


def resize(pixels: Pixels, size: Size, name: str | Path = "picture") -> Pixels:
    """(H, W, 3) -> (h, w, 3) by Pillow's bicubic with antialias; the same array where nothing changes."""
    width, height = target = pixels.shape[1], pixels.shape[0]
    target = _target(width, height, size)
    guard(*target, str(name))
    if target == (width, height):
        return pixels
    return np.array(Image.fromarray(pixels).resize(target, Image.Resampling.BICUBIC))


def prepare(source: Source, view: View, box: Box | None = None, name: str | Path | None = None) -> Picture:
    """The picture as a view wants it: loaded, cropped to the box in pixels of the original, resized."""
    name = _name(source) if name is None else name
    picture = load(source, view.upright, name)
    pixels = picture.pixels if box is None else crop(picture.pixels, box, name=name)
    return Picture(resize(pixels, view.size, name), picture.width, picture.height, picture.taken)


def _target(width: int, height: int, size: Size) -> tuple[int, int]:
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


def _from_array(array: Pixels, name: str) -> Picture:
    if array.dtype != np.uint8 or array.ndim not in (2, 3) or array.shape[2:] not in ((), (3,)):
        raise PictureError(name, f"an array of {array.dtype} {array.shape} is not (H, W, 3) or (H, W) of uint8")
    height, width = array.shape[:2]
    guard(width, height, name)
    if array.ndim == 2:
        array = np.repeat(array[:, :, None], 3, axis=2)
    return Picture(np.array(array, order="C"), width, height)


def _from_image(image: Image.Image, upright: bool, name: str) -> Picture:
    guard(image.width, image.height, name)
    orientation, taken = _exif(image)
    image.load()
    rgb = to_rgb(image)
    turned = image.format == "TIFF"  # Pillow turns TIFF files upright by itself
    turns = {} if turned == upright else _UPRIGHT if upright else _BACK
    if orientation in turns:
        rgb = rgb.transpose(turns[orientation])
    return Picture(np.array(rgb), rgb.width, rgb.height, taken)


def _exif(image: Image.Image) -> tuple[int, str | None]:
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


def _name(source: object) -> str:
    if isinstance(source, str | Path):
        return os.fspath(source)
    name = getattr(source, "name", None)
    return name if isinstance(name, str) else "picture"


def _open_regular(path: str, flags: int) -> int:
    """Open without waiting for a pipe's other end; only regular files pass."""
    number = os.open(path, flags | getattr(os, "O_NONBLOCK", 0))
    mode = os.fstat(number).st_mode
    if not stat.S_ISREG(mode):
        os.close(number)
        raise IsADirectoryError if stat.S_ISDIR(mode) else OSError("not a regular file")
    return number


def _read_all(file: BinaryIO, name: str) -> bytes:
    data = file.read(MAX_BYTES + 1)
    if not isinstance(data, bytes):
        raise PictureError(name, "the file is open as text; open it in binary mode")
    if len(data) > MAX_BYTES:
        raise PictureError(name, f"too large: more than {MAX_BYTES / 1024**3:.0f} GiB")
    return data


def _os_reason(error: Exception) -> str:
    if isinstance(error, FileNotFoundError | NotADirectoryError):
        return "no such file"
    if isinstance(error, IsADirectoryError):
        return "a folder, not a picture"
    if isinstance(error, PermissionError):
        return "no permission to read it"
    return getattr(error, "strerror", None) or str(error)


def _reason(error: Exception) -> str:
    text = str(error) or type(error).__name__
    cut = ("truncated", "broken data stream", "not enough image data", "unexpected end", "end of file")
    if any(words in text.lower() for words in cut):
        return f"the file is truncated ({text})"
    return f"cannot be decoded: {text}"
