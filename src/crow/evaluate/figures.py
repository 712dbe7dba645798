"""Drawing only: arrays in, PNG out. Plots through matplotlib's objects, without its global state; pictures through Pillow."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

Pixels = NDArray[np.uint8]
Numbers = Sequence[float] | NDArray[Any]
DPI = 160
INK, GREY, FAINT, PAPER = "#222222", "#6a6a6a", "#d9d9d9", "#ffffff"
COLOURS = ("#222222", "#0b6e99", "#b5489a", "#4c7a34", "#c2571a", "#7a6a00", "#5b5b9b", "#a3283a")
VERDICTS = {"right": "#2e8b3d", "wrong": "#e07b00", "junk": "#b5b5b5", "query": "#222222"}
THUMB, EDGE, GAP = 96, 4, 6


class FigureError(ValueError):
    """A figure that cannot be drawn here."""


@dataclass(frozen=True)
class Curve:
    """One line of a plot."""

    name: str
    x: Numbers
    y: Numbers
    colour: str = INK
    dashed: bool = False
    hollow: bool = False  # published values, beside ours
    low: Numbers | None = None  # a band around the line
    high: Numbers | None = None


@dataclass(frozen=True)
class Strip:
    """A query and what was found for it, best first, each with its verdict."""

    query: Pixels
    found: Sequence[tuple[Pixels, str]]
    title: str = ""


def curves(lines: Sequence[Curve], x: str, y: str, title: str, wide: bool = False) -> bytes:
    """Curves over dimensions, on a logarithmic axis with a tick at each of them."""
    figure, axes = _plot(title, (7.2, 4.2) if wide else (6.4, 4.2))
    for line in lines:
        pattern, marker = ("--", "o") if line.dashed else ("-", "o")
        if line.hollow:
            pattern, marker = ":", "s" if line.dashed else "D"
        face = PAPER if line.hollow or line.dashed else line.colour
        thick = 0.8 if line.hollow else 1.6
        style = {"color": line.colour, "linestyle": pattern, "linewidth": thick, "marker": marker, "markersize": 5}
        axes.plot(line.x, line.y, mfc=face, label=line.name, **style)
        if line.low is not None and line.high is not None:
            axes.fill_between(line.x, line.low, line.high, color=line.colour, alpha=0.1, linewidth=0)
    ticks = sorted({float(value) for line in lines for value in line.x})
    axes.set_xscale("log", base=2)
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.minorticks_off()
    axes.set(xlabel=x, ylabel=y)
    axes.legend(frameon=False, fontsize=8, loc="center left", bbox_to_anchor=(1.0, 0.5))
    return _png(figure)


def scatter(x: Numbers, y: Numbers, weight: Numbers, xlabel: str, ylabel: str, title: str) -> bytes:
    """Points; those of few places (`weight` counts them) fainter, for they are noise."""
    figure, axes = _plot(title, (5.8, 4.2))
    counts = np.asarray(weight, float)
    strength = 0.15 + 0.85 * np.log1p(counts) / max(np.log1p(counts).max(), 1e-9)
    axes.scatter(x, y, s=9, color=COLOURS[1], alpha=strength, linewidths=0)
    axes.set(xlabel=xlabel, ylabel=ylabel)
    axes.set_ylim(0, None)
    return _png(figure)


def matrix(values: NDArray[Any], groups: Sequence[str], title: str, bar: str) -> bytes:
    """A square matrix of pictures against pictures, sorted by group, the groups named and parted by lines."""
    figure, axes = _plot(title, (6.4, 5.4))
    off = values[~np.eye(len(values), dtype=bool)] if len(values) > 1 else values
    shown = axes.imshow(values, cmap="viridis", vmin=float(off.min()), vmax=1.0, interpolation="nearest")
    names = list(dict.fromkeys(groups))
    edges = np.cumsum([0, *(list(groups).count(name) for name in names)])
    for edge in edges[1:-1]:
        axes.axhline(edge - 0.5, color=PAPER, linewidth=1)
        axes.axvline(edge - 0.5, color=PAPER, linewidth=1)
    middles = (edges[:-1] + edges[1:] - 1) / 2
    axes.set_yticks(middles, names)
    axes.set_xticks(middles, names, rotation=40, ha="right", rotation_mode="anchor")
    axes.grid(False)
    axes.tick_params(length=0)
    figure.colorbar(shown, ax=axes, shrink=0.85, label=bar).outline.set_visible(False)
    return _png(figure)


def strips(rows: Sequence[Strip], title: str, columns: int = 1) -> bytes:
    """Ranked results: the query at the left, then what was found, framed by verdict; in one column or more."""
    cell = THUMB + 2 * EDGE + GAP
    count = max(len(row.found) for row in rows)
    label = 150 if any(row.title for row in rows) else 0
    high = -(-len(rows) // columns)
    width, head = label + (count + 1) * cell + 3 * GAP, 58
    sheet = Image.new("RGB", (columns * (width + 2 * GAP) + GAP, head + high * cell + GAP), PAPER)
    draw = ImageDraw.Draw(sheet)
    draw.text((2 * GAP, GAP), title, INK, _font(17))
    _key(draw, 2 * GAP, 32)
    for i, row in enumerate(rows):
        left, top = 2 * GAP + (i // high) * (width + 2 * GAP), head + (i % high) * cell
        draw.multiline_text((left, top + THUMB / 2 - 20), _broken(row.title, label), GREY, _font(12))
        _framed(sheet, row.query, "query", left + label, top)
        for j, (pixels, verdict) in enumerate(row.found):
            _framed(sheet, pixels, verdict, left + label + (j + 1) * cell + 2 * GAP, top)
    return _saved(sheet)


def panels(rows: Sequence[tuple[str, Sequence[Sequence[Pixels]], Sequence[int]]], title: str) -> bytes:
    """Rows of blocks: a title over each row; each block a line of pictures, fitted to its own height in pixels."""
    made = []
    for name, blocks, heights in rows:
        lines = [[_tall(p, height) for p in block] for block, height in zip(blocks, heights, strict=True)]
        made.append((name, lines))
    width = max(sum(p.width + GAP for p in line) for _, lines in made for line in lines)
    height = 40 + sum(28 + sum(max(p.height for p in line) + GAP for line in lines if line) + GAP for _, lines in made)
    sheet = Image.new("RGB", (max(width, 640) + 4 * GAP, height + GAP), PAPER)
    draw = ImageDraw.Draw(sheet)
    draw.text((2 * GAP, GAP), title, INK, _font(17))
    y = 40
    for name, lines in made:
        draw.text((2 * GAP, y + 4), name, GREY, _font(13))
        y += 28
        for line in (line for line in lines if line):
            x = 2 * GAP
            for picture in line:
                sheet.paste(picture, (x, y))
                draw.rectangle((x - 1, y - 1, x + picture.width, y + picture.height), outline=FAINT)
                x += picture.width + GAP
            y += max(p.height for p in line) + GAP
        y += GAP
    return _saved(sheet)


def short(name: str, signs: int) -> str:
    """A name of at most so many signs, its middle left out where it is longer."""
    return name if len(name) <= signs else f"{name[: signs - signs // 3 - 1]}…{name[-(signs // 3) :]}"


def thumbnail(pixels: Pixels, box: tuple[float, ...] | None = None, side: int = THUMB) -> Pixels:
    """(h, w, 3) -> (side, side, 3): the whole picture in a white square, a box in it drawn in red."""
    image = Image.fromarray(pixels)
    scale = side / max(image.size)
    image = image.resize((max(1, round(image.width * scale)), max(1, round(image.height * scale))))
    if box is not None:
        corners = [min(max(v * scale, 0), n - 1) for v, n in zip(box, image.size * 2, strict=True)]
        ImageDraw.Draw(image).rectangle(corners, outline="#e01010", width=2)
    square = Image.new("RGB", (side, side), PAPER)
    square.paste(image, ((side - image.width) // 2, (side - image.height) // 2))
    return np.asarray(square)


def _plot(title: str, size: tuple[float, float]) -> tuple[Any, Any]:
    """A figure and its axes, in our sober style."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise FigureError(f"plots need matplotlib ({error}): pip install 'crow-search[paper]'") from None
    figure = Figure(size, dpi=DPI, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    axes.set_title(title, fontsize=10, loc="left", color=INK)
    axes.grid(True, color=FAINT, linewidth=0.6)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_color(GREY)
    axes.tick_params(colors=INK, labelsize=8)
    axes.xaxis.label.set_size(9)
    axes.yaxis.label.set_size(9)
    return figure, axes


def _png(figure: Any) -> bytes:
    out = io.BytesIO()
    figure.savefig(out, format="png", metadata={"Software": None})
    return out.getvalue()


def _saved(image: Image.Image) -> bytes:
    out = io.BytesIO()
    image.save(out, "PNG", optimize=False)
    return out.getvalue()


def _font(size: int) -> Any:
    return ImageFont.load_default(size)


def _framed(sheet: Image.Image, pixels: Pixels, verdict: str, x: int, y: int) -> None:
    framed = Image.new("RGB", (THUMB + 2 * EDGE, THUMB + 2 * EDGE), VERDICTS[verdict])
    framed.paste(Image.fromarray(thumbnail(pixels)), (EDGE, EDGE))
    sheet.paste(framed, (x, y))


def _key(draw: ImageDraw.ImageDraw, x: float, y: float) -> None:
    """The legend of the frames."""
    for name, text in zip(VERDICTS, ("right", "false", "passed over (junk)", "the query"), strict=True):
        draw.rectangle((x, y, x + 14, y + 14), outline=VERDICTS[name], width=3)
        draw.text((x + 21, y - 1), text, GREY, _font(13))
        x += 21 + draw.textlength(text, _font(13)) + 20


def _broken(text: str, width: int) -> str:
    """Each line of a text in lines of at most `width` pixels, cut wherever it must be."""
    signs = max(1, width // 8)
    lines = [line[i : i + signs] for line in text.split("\n") for i in range(0, len(line), signs)]
    return "\n".join(lines)


def _tall(pixels: Pixels, height: int) -> Image.Image:
    image = Image.fromarray(np.ascontiguousarray(pixels))
    return image.resize((max(1, round(image.width * height / image.height)), height), Image.Resampling.LANCZOS)
