"""What one table or figure came to: lines of numbers, pictures, and what a reader must know about them."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from crow.evaluate.paper.published import PUBLISHED
from crow.evaluate.run import Result

NAMES = {  # as the paper writes them
    "crow": "CroW",
    "ucrow": "uCroW",
    "ucrow+sw": "uCroW+SW",
    "ucrow+ssw": "uCroW+SSW",
    "spoc": "SPoC",
    "mac": "MAC",
    "gem": "GeM",
    "rmac": "R-MAC",
    "crow-conv5": "CroW's weights on conv5",
}
SETTINGS = [
    "dataset",
    "recipe",
    "changed",
    "network",
    "layer",
    "size",
    "whiten",
    "pca",
    "expand",
    "crop",
    "upright",
    "weights",
    "precision",
]
COUNTS = ["queries", "images", "distractors", "failed"]
HEAD = ["row", "column", "d", "ours", "low", "high", "published", "difference"]


class Skipped(ValueError):
    """A table or figure that cannot be made from what is on disk, and why."""


@dataclass(frozen=True)
class Line:
    """One value: ours, its 95 % interval where it has one, and the value published in this very place."""

    row: str
    column: str
    d: int | None
    ours: float | str | None
    published: float | str | None = None
    low: float | None = None
    high: float | None = None
    record: Mapping[str, Any] = field(default_factory=dict)

    @property
    def difference(self) -> float | None:
        """Ours minus the published value."""
        both = isinstance(self.ours, (int, float)) and isinstance(self.published, (int, float))
        return self.ours - self.published if both else None  # type: ignore[operator]


@dataclass(frozen=True)
class Finding:
    """A table or figure of the report."""

    title: str
    place: str  # in the paper
    lines: tuple[Line, ...] = ()
    pictures: Mapping[str, bytes] = field(default_factory=dict)  # file name -> PNG
    notes: tuple[str, ...] = ()
    listed: bool = True  # on the page; the points of a plot are in the CSV alone


def line_of(place: str, row: str, column: str, result: Result, shown: str | None = None) -> Line:
    """A mAP, the value published at (row, column, d) of this place beside it."""
    record = result.record
    published = PUBLISHED.get(place, {}).get((row, column, record["dim"]))
    d = record["dim"]
    return Line(row, shown or column, d, record["map"], published, record["ci_low"], record["ci_high"], record)


def as_csv(lines: Iterable[Line]) -> str:
    """The lines with every setting they hang on."""
    text = io.StringIO()
    out = csv.writer(text, lineterminator="\n")
    out.writerow([*HEAD, *SETTINGS, *COUNTS])
    for line in lines:
        values = [line.row, line.column, line.d, line.ours, line.low, line.high, line.published, line.difference]
        made = [line.record.get(name) for name in [*SETTINGS, *COUNTS]]
        out.writerow([_plain(value) for value in [*values, *made]])
    return text.getvalue()


def _plain(value: Any) -> Any:
    if isinstance(value, float):
        return f"{value:.6g}"
    return "; ".join(value) if isinstance(value, list) else value
