"""Any picture as 8-bit sRGB on white: bit depth, colour profile, CMYK, palette and transparency end here."""

from __future__ import annotations

from io import BytesIO
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageChops, ImageCms

_PROFILE_SPACES = {"L": "GRAY", "RGB": "RGB", "CMYK": "CMYK", "LAB": "Lab"}


BAND = 1 << 22  # pixels that are made sRGB at a time: on the way one takes up to 40 bytes


def to_rgb(image: Image.Image) -> Image.Image:
    """A new (or the same) image of mode RGB: sRGB, transparent parts on white."""
    rows = max(1, BAND // image.width)
    if rows >= image.height:
        return _to_rgb(image, _range(image, rows))
    if image.mode == "RGB" and not image.info.get("icc_profile") and not image.has_transparency_data:
        return image
    extremes, out = _range(image, rows), Image.new("RGB", image.size)
    for top in range(0, image.height, rows):
        band = image.crop((0, top, image.width, min(top + rows, image.height)))
        out.paste(_to_rgb(band, extremes), (0, top))
    return out


def _to_rgb(image: Image.Image, extremes: tuple[float, float]) -> Image.Image:
    """A part of a picture, or all of it."""
    profile = image.info.get("icc_profile")
    image = _eight_bits(image, extremes)
    if not image.has_transparency_data:
        return _srgb(image, profile)
    image = image.convert("LA" if image.mode in ("1", "L", "LA", "La") else "RGBA")
    alpha = image.getchannel("A")
    on_white = Image.new("RGB", image.size, "white")
    on_white.paste(_srgb(image.convert(image.mode[:-1]), profile), mask=alpha)
    return on_white


def _srgb(image: Image.Image, profile: bytes | None) -> Image.Image:
    """By the colour profile where it fits the picture; a broken or foreign one is ignored."""
    if image.mode not in _PROFILE_SPACES:
        image = image.convert("RGB")
    try:
        if profile:
            source = ImageCms.ImageCmsProfile(BytesIO(profile))
        elif image.mode == "LAB":
            source = ImageCms.ImageCmsProfile(ImageCms.createProfile("LAB"))
        else:
            return _rgb(image)
        if source.profile.xcolor_space.strip() == _PROFILE_SPACES[image.mode]:
            return _transformed(image, source)
    except (ImageCms.PyCMSError, OSError, ValueError, TypeError):
        pass
    return _rgb(image)


def _rgb(image: Image.Image) -> Image.Image:
    """As RGB; Pillow's `convert` would copy one that is RGB already."""
    return image if image.mode == "RGB" else image.convert("RGB")


def _transformed(image: Image.Image, source: ImageCms.ImageCmsProfile) -> Image.Image:
    """The transform to sRGB, which takes longer than decoding and is spared where the profile is sRGB itself."""
    transform = ImageCms.buildTransform(source, ImageCms.createProfile("sRGB"), image.mode, "RGB")
    if image.mode == "RGB":
        steps = np.linspace(0, 255, 9).astype(np.uint8)
        probe = Image.fromarray(np.stack(np.meshgrid(steps, steps, steps), axis=-1).reshape(1, -1, 3))
        change = ImageChops.difference(probe, ImageCms.applyTransform(probe, transform))  # type: ignore[arg-type]
        if np.asarray(change).max() <= 1:
            return image
    result = ImageCms.applyTransform(image, transform)
    assert result is not None
    return result


def _eight_bits(image: Image.Image, extremes: tuple[float, float]) -> Image.Image:
    """Deep grey as L: 16-bit by its full range; 32-bit and float as 0..1, or else from its lowest to its highest."""
    if not image.mode.startswith(("I", "F")):
        return image
    values = np.asarray(image)
    grey = (values + np.uint32(128)) // 257 if image.mode.startswith("I;16") else _stretched(values, *extremes)
    deep = Image.fromarray(grey.astype(np.uint8))
    see_through = image.info.get("transparency")
    if isinstance(see_through, int):
        deep.putalpha(Image.fromarray(np.where(values == see_through, 0, 255).astype(np.uint8)))
    return deep


def _range(image: Image.Image, rows: int) -> tuple[float, float]:
    """The lowest and the highest number of a picture in I or F, some rows at a time; a float one within 0..1 has that."""
    if image.mode not in ("I", "F"):
        return 0.0, 1.0
    tops = range(0, image.height, rows)
    bands = (np.asarray(image.crop((0, top, image.width, min(top + rows, image.height)))) for top in tops)
    found = [(part.min(), part.max()) for band in bands if (part := band[np.isfinite(band)]).size]
    low, high = (float(min(a for a, _ in found)), float(max(b for _, b in found))) if found else (0.0, 1.0)
    return (0.0, 1.0) if image.mode == "F" and low >= 0 and high <= 1 else (low, high)


def _stretched(values: NDArray[Any], low: float, high: float) -> NDArray[np.float64]:
    """(H, W) of any numbers -> (H, W) whole numbers of 0 to 255; what is no number becomes 0."""
    share = (values.astype(np.float64) - low) / max(high - low, 1e-30)
    return np.rint(np.nan_to_num(share, nan=0, posinf=1, neginf=0).clip(0, 1) * 255)
