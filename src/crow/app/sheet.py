"""The contact sheet of a search: the query with its box, and the results, as one HTML file or one picture."""

from __future__ import annotations

import base64
import io
import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

from PIL import Image, ImageDraw

from crow.extract.images import PictureError, load
from crow.search.query import Hit, Results

SIDE = 240  # pixels of a thumbnail's longer side
GAP, LINE, ACROSS = 12, 16, 5
INK, FAINT, PAPER, MARK = "#202124", "#9aa0a6", "#ffffff", "#d93025"
STYLE = """
:root { color-scheme: light dark; font: 14px/1.4 system-ui, sans-serif }
body { margin: 2rem; max-width: 90rem }
main { display: grid; grid-template-columns: repeat(auto-fill, minmax(15rem, 1fr)); gap: 1rem }
figure { margin: 0 } img { max-width: 100%; display: block; border-radius: 4px }
figcaption { overflow-wrap: anywhere } .below { opacity: .55 } b { font-variant-numeric: tabular-nums }
h2 { grid-column: 1 / -1; font-size: 1rem; border-top: 2px solid #d93025; padding-top: .5rem; margin: .5rem 0 0 }
"""


@dataclass(frozen=True)
class Cell:
    """One picture of the sheet, already small."""

    name: str
    caption: str
    picture: Image.Image
    match: bool = True


@dataclass(frozen=True)
class Sheet:
    """Queries first, then results, the best first."""

    queries: list[Cell]
    results: list[Cell]

    @classmethod
    def of(cls, queries: Sequence[str], box: Sequence[float] | None, results: Results) -> Sheet:
        """The sheet of a search; a picture that cannot be read any more is an empty cell that says so."""
        asked = [Cell(_text(q), "query", _small(q, box)) for q in queries]
        found = [Cell(_text(h.path), _caption(i, h), _small(h.path), h.match) for i, h in enumerate(results, 1)]
        return cls(asked, found)

    def write_html(self, path: Path) -> None:
        """One file with everything inside."""
        body = ["<h1>Query</h1><main>", *map(_figure, self.queries), "</main><h1>Results</h1><main>"]
        matching = True
        for cell in self.results:
            if matching and not cell.match:
                body.append("<h2>Matches end here</h2>")
            matching = cell.match
            body.append(_figure(cell))
        head = f'<meta charset="utf-8"><title>crow search</title><style>{STYLE}</style>'
        text = f'<!doctype html><html lang="en"><head>{head}</head><body>{"".join(body)}</main></body></html>\n'
        path.write_text(text, encoding="utf-8")

    def write_png(self, path: Path) -> None:
        """One picture, queries in the first row."""
        rows = [self.queries[i : i + ACROSS] for i in range(0, len(self.queries), ACROSS)]
        rows += [self.results[i : i + ACROSS] for i in range(0, len(self.results), ACROSS)]
        heights = [max(cell.picture.height for cell in row) + 2 * LINE + GAP for row in rows]
        sheet = Image.new("RGB", (ACROSS * (SIDE + GAP) + GAP, sum(heights) + GAP), PAPER)
        draw, top = ImageDraw.Draw(sheet), GAP
        for row, height in zip(rows, heights, strict=True):
            for x, cell in enumerate(row):
                left, below = GAP + x * (SIDE + GAP), top + cell.picture.height + 2
                sheet.paste(cell.picture, (left, top))
                ink = INK if cell.match else FAINT
                draw.text((left, below), cell.caption, ink)
                draw.text((left, below + LINE), _plain("/".join(Path(cell.name).parts[-2:]))[-38:], ink)
            top += height
        sheet.save(path, "PNG")


def _small(path: str, box: Sequence[float] | None = None) -> Image.Image:
    """A thumbnail, upright, with the box drawn on it."""
    try:
        pixels = load(path).pixels
    except (PictureError, OSError) as error:
        empty = Image.new("RGB", (SIDE, SIDE * 3 // 4), "#e8eaed")
        ImageDraw.Draw(empty).text((8, 8), _plain(str(error))[-36:], INK)
        return empty
    scale = SIDE / max(pixels.shape[:2])
    size = (max(1, round(pixels.shape[1] * scale)), max(1, round(pixels.shape[0] * scale)))
    small = Image.fromarray(pixels).resize(size, Image.Resampling.BICUBIC, reducing_gap=2)
    if box is not None:
        ImageDraw.Draw(small).rectangle([side * scale for side in box], outline=MARK, width=3)
    return small


def _caption(rank: int, hit: Hit) -> str:
    chance = f", chance {hit.chance:.1e}" if math.isfinite(hit.chance) else ""
    return f"{rank}: {hit.score:.3f}{chance}"


def _figure(cell: Cell) -> str:
    data = io.BytesIO()
    cell.picture.save(data, "JPEG", quality=85)
    source = base64.b64encode(data.getvalue()).decode()
    name = escape(cell.name)
    look = "" if cell.match else ' class="below"'
    picture = f'<img src="data:image/jpeg;base64,{source}" alt="{name}">'
    return f"<figure{look}>{picture}<figcaption><b>{escape(cell.caption)}</b><br>{name}</figcaption></figure>"


def _text(path: str) -> str:
    """A path that can be written as UTF-8."""
    return path.encode("utf-8", "backslashreplace").decode()


def _plain(text: str) -> str:
    """Text that the built-in font can draw."""
    return text.encode("latin-1", "replace").decode("latin-1").replace("\n", " ")
