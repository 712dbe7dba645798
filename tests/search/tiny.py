"""A describer without a network: a fixed random projection of a picture made very small. Deterministic, no torch."""

from __future__ import annotations

import io
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from crow.recipe import RECIPES

DIM = 16
PROJECTION = np.random.default_rng(0).standard_normal((49, DIM))


@dataclass(frozen=True)
class Described:
    key: str
    vector: np.ndarray | None
    width: int = 0
    height: int = 0
    taken: str | None = None
    reason: str | None = None


class Tiny:
    precision = "exact"
    weights = "tiny"

    def __init__(self, recipe: Any = RECIPES["crow"]) -> None:
        self.recipe = recipe
        self.described = 0

    def one(self, source: Any, box: Any = None) -> tuple[np.ndarray, int, int]:
        source = io.BytesIO(source) if isinstance(source, bytes) else source
        with source if isinstance(source, Image.Image) else Image.open(source) as picture:
            rgb = picture.convert("RGB")
        small = (
            np.asarray((rgb.crop(box) if box else rgb).resize((4, 4), Image.Resampling.BOX), np.float64).ravel() / 255
        )
        vector = np.r_[small, 0.1] @ PROJECTION
        self.described += 1
        return (vector / np.linalg.norm(vector)).astype(np.float32), *rgb.size

    def __call__(self, pictures: Any, box: Any = None) -> np.ndarray:
        return np.stack([self.one(p, box)[0] for p in (pictures if isinstance(pictures, list) else [pictures])])

    def stream(self, items: Iterable[tuple[str, Any]]) -> Iterator[Described]:
        for key, source in items:
            try:
                yield Described(key, *self.one(source))
            except Exception as error:
                yield Described(key, None, reason=f"{key}: {type(error).__name__}")


def paint(path: Path, seed: int, size: int = 8) -> Path:
    """A small picture that depends on nothing but its seed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(seed).integers(0, 256, (size, size, 3), np.uint8)
    half = path.with_name(f".{path.name}.half")
    Image.fromarray(pixels).save(half, "PNG")
    os.replace(half, path)  # noqa: PTH105
    return path
