"""Every drawing is a readable PNG, and shows what it was given where that can be told from pixels."""

from __future__ import annotations

import io
import sys

import numpy as np
import pytest
from PIL import Image

from crow.evaluate import figures
from crow.evaluate.figures import THUMB, Curve, FigureError, Strip

GREEN, ORANGE, BLACK = (46, 139, 61), (224, 123, 0), (34, 34, 34)


def opened(png: bytes) -> np.ndarray:
    image = Image.open(io.BytesIO(png))
    assert image.format == "PNG"
    return np.asarray(image.convert("RGB"))


def plain(colour: tuple[int, int, int], shape=(40, 60)) -> np.ndarray:
    return np.full((*shape, 3), colour, np.uint8)


def test_curves_are_drawn_in_their_colours_and_the_same_every_time():
    pytest.importorskip("matplotlib")
    lines = [
        Curve("ours", [128, 256], [0.4, 0.6], "#0b6e99", low=[0.3, 0.5], high=[0.5, 0.7]),
        Curve("published", [128, 256], [0.5, 0.7], "#c2571a", hollow=True),
    ]
    png = figures.curves(lines, "dimensions", "mAP", "title")
    assert figures.curves(lines, "dimensions", "mAP", "title") == png
    pixels = opened(png).reshape(-1, 3)
    for colour in ((11, 110, 153), (194, 87, 26)):
        assert (np.abs(pixels.astype(int) - colour).max(1) < 8).sum() > 50
    assert "matplotlib.pyplot" not in sys.modules  # no global state


def test_matrix_shows_its_values_cell_by_cell():
    pytest.importorskip("matplotlib")
    values = np.array([[1.0, 0.9, 0.1], [0.9, 1.0, 0.2], [0.1, 0.2, 1.0]])
    first = opened(figures.matrix(values, ["a", "a", "b"], "title", "correlation"))
    other = opened(figures.matrix(values[::-1], ["a", "a", "b"], "title", "correlation"))
    assert first.shape == other.shape and (first != other).any()


def test_scatter_of_one_point():
    pytest.importorskip("matplotlib")
    assert opened(figures.scatter([0.5], [1.0], [3], "x", "y", "title")).size


def test_strips_frame_each_picture_by_its_verdict_in_order():
    red, blue = plain((250, 0, 0)), plain((0, 0, 250))
    rows = [Strip(red, [(blue, "right"), (red, "wrong")], "one"), Strip(blue, [(red, "wrong")], "two")]
    pixels = opened(figures.strips(rows, "title"))

    def first_column(colour: tuple[int, int, int], top: int, bottom: int) -> int:
        part = (pixels[top:bottom] == colour).all(-1)
        return int(np.nonzero(part.sum(0) > THUMB)[0][0])

    half = 58 + THUMB + 14
    assert first_column(BLACK, 58, half) < first_column(GREEN, 58, half) < first_column(ORANGE, 58, half)
    assert first_column(ORANGE, half, pixels.shape[0]) == first_column(
        GREEN, 58, half
    )  # the first result of the second
    two = opened(figures.strips(rows, "title", columns=2))
    assert two.shape[1] > 1.8 * pixels.shape[1] and two.shape[0] < pixels.shape[0]


def test_thumbnails_keep_the_shape_and_mark_the_box():
    small = figures.thumbnail(plain((0, 0, 250), (50, 100)), (10, 10, 90, 40))
    assert small.shape == (THUMB, THUMB, 3)
    assert (small[0] == 255).all() and (small[THUMB // 2, THUMB // 2] == (0, 0, 250)).all()
    assert ((small == (224, 16, 16)).all(-1)).sum() > 50


def test_panels_hold_every_picture():
    rows = [("name", [[plain((250, 0, 0)), plain((0, 0, 250))], [plain((0, 250, 0))]], (80, 40))]
    pixels = opened(figures.panels(rows, "title"))
    counts = [int((pixels == colour).all(-1).sum()) for colour in ((250, 0, 0), (0, 0, 250), (0, 250, 0))]
    assert counts == [80 * 120, 80 * 120, 40 * 60]


def test_short_names():
    assert figures.short("abc", 10) == "abc"
    assert figures.short("a" * 20 + "end", 12) == "aaaaaaa…aend" and len(figures.short("x" * 50, 12)) == 12


def test_matplotlib_is_asked_for_by_name(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(FigureError, match=r"pip install 'crow-search\[paper\]'"):
        figures.scatter([0.5], [1.0], [3], "x", "y", "title")
