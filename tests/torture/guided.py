"""The program that libFuzzer runs: python -m torture.guided CORPUS [options of libFuzzer]."""

from __future__ import annotations

import sys
import warnings

import atheris

with atheris.instrument_imports(include=["PIL", "crow.extract", "pillow_heif"]):
    from PIL import (  # noqa: F401  # fmt: skip
        AvifImagePlugin,
        BmpImagePlugin,
        GifImagePlugin,
        JpegImagePlugin,
        PngImagePlugin,
        TiffImagePlugin,
        WebPImagePlugin,
    )

    from torture import pictures

NAMES = ("a.jpg", "a.dng", "a.heic")


def one(data: bytes) -> None:
    """A file; its last byte tells its name."""
    pictures.checked(NAMES[data[-1] % 8 == 7] if data else NAMES[0], data)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    atheris.Setup(sys.argv, one)
    atheris.Fuzz()
