"""From a file to an opened Pillow image: which formats are read, and how large a picture may be."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from importlib import import_module
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO

from PIL import Image, TiffImagePlugin

from crow.extract.picture import PictureError

# The largest phone sensors make 200 megapixels; 250 take 0.75 GB as RGB, and several pictures are decoded at once.
MAX_PIXELS = 250_000_000
# 250 megapixels of 16-bit RGBA without compression, which is as large as an honest file gets.
MAX_BYTES = 2 * 1024**3
# Bytes that a pixel takes at most while it is read, as measured, decoder and colours together.
_COSTS = {"WEBP": 20, "JPEG": 12}  # JPEG: progressive CMYK
_COST = 8
# A picture that takes more memory than this must bring as many bytes as a photograph: phones' strongest compression
# of a smooth sky leaves a tenth of a byte to a pixel. What brings fewer is a bomb, or has nothing in it to search by.
FREE_BYTES = 900_000_000
LEAST_BYTES = 0.05
_TOO_LONG = f"too large: a file of more than {MAX_BYTES / 1024**3:.0f} GiB"

RAW_EXTENSIONS = frozenset(
    f".{ending}"
    for ending in (
        *("3fr", "arw", "cr2", "cr3", "crw", "dcr", "dng", "erf", "iiq", "k25", "kdc", "mef", "mos", "mrw", "nef"),
        *("nrw", "orf", "pef", "raf", "raw", "rw2", "rwl", "sr2", "srf", "srw", "x3f"),
    )
)
EXTENSIONS = RAW_EXTENSIONS | {
    *(".jpg", ".jpeg", ".jpe", ".jfif", ".mpo", ".png", ".webp", ".tif", ".tiff", ".bmp", ".dib", ".gif"),
    *(".avif", ".heic", ".heif", ".hif"),
}


class TiffFile(TiffImagePlugin.TiffImageFile):
    """Pillow's own, without its second guard, which warns below our limit and refuses below it too."""

    def load_prepare(self) -> None:
        if self._im is None:
            self.im = Image.core.new(self.mode, self._tile_size)  # type: ignore[attr-defined]
        super().load_prepare()


def _bmff(prefix: bytes, *brands: bytes) -> bool:
    return prefix[4:8] == b"ftyp" and prefix[8:12] in brands


# Format: (does the file begin like one, module, class). Pillow's own `open` is not used, since it warns of large
# pictures by a limit of its own. JPEG is JpegImageFile also for phones' multi-picture files: the first is the photo.
FORMATS: dict[str, tuple[Callable[[bytes], bool], str, str]] = {
    "JPEG": (lambda p: p.startswith(b"\xff\xd8\xff"), "PIL.JpegImagePlugin", "JpegImageFile"),
    "PNG": (lambda p: p.startswith(b"\x89PNG\r\n\x1a\n"), "PIL.PngImagePlugin", "PngImageFile"),
    "WEBP": (lambda p: p[:4] == b"RIFF" and p[8:12] == b"WEBP", "PIL.WebPImagePlugin", "WebPImageFile"),
    "TIFF": (lambda p: p[:4] in (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+"), "crow.extract.formats", "TiffFile"),
    "BMP": (lambda p: p.startswith(b"BM"), "PIL.BmpImagePlugin", "BmpImageFile"),
    "GIF": (lambda p: p[:6] in (b"GIF87a", b"GIF89a"), "PIL.GifImagePlugin", "GifImageFile"),
    "AVIF": (lambda p: _bmff(p, b"avif", b"avis", b"mif1", b"msf1"), "PIL.AvifImagePlugin", "AvifImageFile"),
    "HEIF": (
        lambda p: _bmff(p, b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"mif1", b"mif2", b"mif3", b"msf1"),
        "pillow_heif",
        "HeifImageFile",
    ),
}


def name_of(source: object, name: str | Path | None = None) -> str:
    """What messages call the picture: the name given, the path, or the name of the open file."""
    for candidate in (name, source, getattr(source, "name", None)):
        if isinstance(candidate, str | Path):
            return os.fspath(candidate)
    return "picture"


def read(source: str | Path | bytes | BinaryIO, name: str | None = None) -> bytes:
    """The bytes of a file, read once; a folder, a pipe and a file beyond MAX_BYTES are refused."""
    name = name_of(source, name)
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


def guard(width: int, height: int, name: str) -> None:
    """Refuse a picture that is empty or larger than MAX_PIXELS."""
    if width < 1 or height < 1:
        raise PictureError(name, f"has no pixels ({width} x {height})")
    if width * height > MAX_PIXELS:
        raise PictureError(
            name,
            f"too large: {width} x {height} is {width * height / 1e6:,.0f} megapixels, the limit is {MAX_PIXELS / 1e6:.0f}",
        )


def _refuse_bomb(image: Image.Image, length: int, name: str) -> None:
    """Refuse a small file that unfolds to a huge picture."""
    pixels = image.width * image.height
    needs = pixels * _COSTS.get(image.format or "", _COST)
    if needs > FREE_BYTES and length < LEAST_BYTES * pixels:
        size = f"{image.width} x {image.height} in a file of {length / 1e6:.1f} MB"
        raise PictureError(
            name, f"too large: {size} would take {needs / 1e9:.1f} GB to read; so few bytes hold no photograph"
        )


def open_picture(data: bytes, name: str, raw: bool = False) -> Image.Image:
    """An image whose header has been read and its size checked; no pixel is decoded yet."""
    if not data:
        raise PictureError(name, "the file is empty")
    if raw:
        return _preview(data, name)
    begins_like = [f for f, (begins, _, _) in FORMATS.items() if begins(data[:16])]
    if not begins_like:
        raise PictureError(name, f"not a picture (none of {', '.join(FORMATS)})")
    problem: Exception | None = None
    for kind in begins_like:
        try:
            image = _opener(kind)(BytesIO(data))
        except Image.DecompressionBombError:  # WebP and GIF ask Pillow's own limit as they open
            raise PictureError(name, "too large: Pillow's limit for this format is 179 megapixels") from None
        except Exception as error:  # decoders raise anything at all on broken bytes
            problem = error
        else:
            guard(image.width, image.height, name)
            _refuse_bomb(image, len(data), name)
            return image
    raise PictureError(name, broken(begins_like[0], problem or ValueError()))


def _opener(kind: str) -> Callable[[BytesIO], Image.Image]:
    _, module, opener = FORMATS[kind]
    found: Callable[[BytesIO], Image.Image] = getattr(import_module(module), opener)
    return found


def _preview(data: bytes, name: str) -> Image.Image:
    """The preview that the camera wrote into a RAW file, with the orientation in its EXIF."""
    import rawpy

    try:
        with rawpy.imread(BytesIO(data)) as raw:
            thumb: Any = raw.extract_thumb()
            flip = raw.sizes.flip
    except rawpy.LibRawNoThumbnailError:
        raise PictureError(name, "a RAW file without an embedded preview") from None
    except rawpy.LibRawError as error:
        text = error.args[0].decode() if error.args and isinstance(error.args[0], bytes) else str(error)
        raise PictureError(name, f"not a RAW file that can be read ({text})") from None
    if thumb.format == rawpy.ThumbFormat.JPEG:
        image = open_picture(thumb.data, name)
    else:
        guard(thumb.data.shape[1], thumb.data.shape[0], name)
        image = Image.fromarray(thumb.data)
    exif = image.getexif()
    if 0x0112 not in exif:  # LibRaw tells the turn of the sensor as 3, 5 (left) or 6 (right)
        exif[0x0112] = {3: 3, 5: 8, 6: 6}.get(flip, 1)
    return image


def broken(kind: str | None, error: Exception) -> str:
    """The reason in plain words for what a decoder raised."""
    text = str(error) if isinstance(error, OSError | ValueError | SyntaxError | RuntimeError) else repr(error)
    text = text.strip()
    cut = ("truncated", "broken data stream", "not enough image data", "unexpected end", "end of file")
    how = "truncated" if any(words in text.lower() for words in cut) else "broken"
    return f"a {how} {kind or 'picture'} file ({text})" if text else f"a {how} {kind or 'picture'} file"


def _open_regular(path: str, flags: int) -> int:
    """Open without waiting for a pipe's other end; only regular files pass."""
    number = os.open(path, flags | getattr(os, "O_NONBLOCK", 0))
    info = os.fstat(number)
    if stat.S_ISREG(info.st_mode) and info.st_size <= MAX_BYTES:
        return number
    os.close(number)
    if stat.S_ISDIR(info.st_mode):
        raise IsADirectoryError
    raise OSError(_TOO_LONG if stat.S_ISREG(info.st_mode) else "not a regular file")


def _read_all(file: BinaryIO, name: str) -> bytes:
    """What is left of an open file, in pieces, since asking for MAX_BYTES at once would reserve them."""
    pieces, length = [], 0
    while piece := file.read(1 << 24):
        if not isinstance(piece, bytes):
            raise PictureError(name, "the file is open as text; open it in binary mode")
        pieces.append(piece)
        length += len(piece)
        if length > MAX_BYTES:
            raise PictureError(name, _TOO_LONG)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def _os_reason(error: Exception) -> str:
    if isinstance(error, FileNotFoundError | NotADirectoryError):
        return "no such file"
    if isinstance(error, IsADirectoryError):
        return "a folder, not a picture"
    if isinstance(error, PermissionError):
        return "no permission to read it"
    return getattr(error, "strerror", None) or str(error)
