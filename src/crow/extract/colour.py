"""Any picture as 8-bit sRGB on white: bit depth, colour profile, CMYK, palette and transparency end here."""

from __future__ import annotations

from io import BytesIO
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageChops, ImageCms

_PROFILE_SPACES = {"L": "GRAY", "RGB": "RGB", "CMYK": "CMYK", "LAB": "Lab"}


def to_rgb(image: Image.Image) -> Image.Image:
    """A new (or the same) image of mode RGB: sRGB, transparent parts on white."""
    profile = image.info.get("icc_profile")
    image = _eight_bits(image)
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
            return image.convert("RGB")
        if source.profile.xcolor_space.strip() == _PROFILE_SPACES[image.mode]:
            return _transformed(image, source)
    except (ImageCms.PyCMSError, OSError, ValueError, TypeError):
        pass
    return image.convert("RGB")


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


def _eight_bits(image: Image.Image) -> Image.Image:
    """Deep grey as L: 16-bit by its full range; 32-bit and float as 0..1, or else from its lowest to its highest."""
    if not image.mode.startswith(("I", "F")):
        return image
    values = np.asarray(image)
    grey = (values + np.uint32(128)) // 257 if image.mode.startswith("I;16") else _stretched(values)
    deep = Image.fromarray(grey.astype(np.uint8))
    see_through = image.info.get("transparency")
    if isinstance(see_through, int):
        deep.putalpha(Image.fromarray(np.where(values == see_through, 0, 255).astype(np.uint8)))
    return deep


def _stretched(values: NDArray[Any]) -> NDArray[np.float64]:
    """(H, W) of any numbers -> (H, W) whole numbers of 0 to 255; what is no number becomes 0."""
    finite = values[np.isfinite(values)].astype(np.float64)
    low, high = (finite.min(), finite.max()) if finite.size else (0.0, 1.0)
    if values.dtype.kind == "f" and low >= 0 and high <= 1:
        low, high = 0.0, 1.0
    share = (values.astype(np.float64) - low) / max(high - low, 1e-30)
    return np.rint(np.nan_to_num(share, nan=0, posinf=1, neginf=0).clip(0, 1) * 255)
