"""What reading a picture hands out: a Picture, or a PictureError that says which file and why."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

Pixels = NDArray[np.uint8]


class PictureError(ValueError):
    """A picture that cannot be used; as text one line, "<file>: <reason>"."""

    def __init__(self, name: str | Path, reason: str) -> None:
        super().__init__(name, reason)
        self.name = name
        self.reason = one_line(reason)

    def __str__(self) -> str:
        return f"{one_line(os.fspath(self.name))}: {self.reason}"


@dataclass(frozen=True)
class Picture:
    """Pixels, and what is known of the picture they came from."""

    pixels: Pixels  # (H, W, 3) RGB
    width: int  # of the upright original, before any crop or resizing
    height: int
    taken: str | None = None  # "2024-05-06T12:13:14", as the camera wrote it


def one_line(text: str) -> str:
    """The text without line breaks or anything else that cannot be printed, file names of no encoding included."""
    text = text.encode("utf-8", "backslashreplace").decode()
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
