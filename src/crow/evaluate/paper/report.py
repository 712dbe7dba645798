"""The whole report: every exhibit that what is on disk allows, as PNG, CSV and one HTML page.

report = make(of_groups(Path("photos")), Path("report"))
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from crow.evaluate.paper import curves, looks, results, tables
from crow.evaluate.paper.bench import Bench
from crow.evaluate.paper.finding import Finding, Skipped, as_csv
from crow.evaluate.paper.page import page
from crow.evaluate.tally import Wanted
from crow.files import replacing


@dataclass(frozen=True)
class Exhibit:
    """A table or figure of the paper: how it is made, and what it needs of which columns."""

    make: Callable[[Bench], Finding]
    recipes: Callable[[Bench], Iterable[Wanted]] = lambda bench: ()
    everywhere: bool = False  # every column, not only the main one


EXHIBITS: dict[str, Exhibit] = {  # in the paper's order; the names are its labels where it has them
    "patches": Exhibit(looks.patches),
    "sparsity2": Exhibit(looks.sparsity2, looks.counted),
    "sparsity_correlation": Exhibit(looks.sparsity_correlation, looks.counted),
    "norms": Exhibit(tables.norms, lambda bench: tables.norm_recipes(bench).values()),
    "idfviz": Exhibit(looks.idfviz),
    "spocsup": Exhibit(tables.spocsup),
    "layers": Exhibit(curves.layers, lambda bench: curves.layer_recipes(bench).values()),
    "paris_dim": Exhibit(curves.paris_dim, curves.weighting_recipes),
    "max_pooling": Exhibit(tables.max_pooling, tables.max_recipes),
    "whiten": Exhibit(tables.whiten, tables.whitening_recipes),
    "search": Exhibit(tables.search, tables.search_recipes, everywhere=True),
    "spoc_layer": Exhibit(tables.spoc_layer, tables.spoc_recipes),
    "resgood": Exhibit(results.resgood, results.result_recipes),
    "top10": Exhibit(tables.top10, tables.whitening_recipes),
    "res": Exhibit(results.res, results.result_recipes),
}


@dataclass(frozen=True)
class Report:
    """What was made, and what could not be, with the reason."""

    made: dict[str, Finding]
    skipped: dict[str, str]
    amiss: tuple[str, ...]


class UnknownExhibit(ValueError):
    """A name that no table or figure has."""


def named(only: Sequence[str]) -> list[str]:
    """The names asked for in the paper's order, all where none is; an unknown one is an error that lists them."""
    for name in only:
        if name not in EXHIBITS:
            raise UnknownExhibit(f"no table or figure named {name!r}; there are: {', '.join(EXHIBITS)}")
    return [name for name in EXHIBITS if not only or name in only]


def make(bench: Bench, out: Path, only: Sequence[str] = ()) -> Report:
    """Make the exhibits, and write each as soon as it is there; the page last."""
    out.mkdir(parents=True, exist_ok=True)
    names = named(only)
    bench.describe(_wanted(bench, names))
    made: dict[str, Finding] = {}
    skipped: dict[str, str] = {}
    for name in names:
        try:
            made[name] = EXHIBITS[name].make(bench)
        except Skipped as reason:
            skipped[name] = str(reason)
            continue
        _write(out, name, made[name])
    report = Report(made, skipped, tuple(bench.amiss))
    _whole(out / "index.html", page(bench, report.made, report.skipped, report.amiss).encode())
    return report


def _wanted(bench: Bench, names: Sequence[str]) -> dict[str, list[Wanted]]:
    """Column -> all that these exhibits want of its pictures; the widest columns first, for they hold the others."""
    wanted: dict[str, list[Wanted]] = {name: [] for name in bench.columns}
    for name in names:
        exhibit = EXHIBITS[name]
        for column in bench.columns if exhibit.everywhere else [bench.main]:
            wanted.setdefault(column, []).extend(exhibit.recipes(bench))
    return {column: wanted[column] for column in sorted(wanted, key=lambda c: c != bench.main) if wanted[column]}


def _write(out: Path, name: str, finding: Finding) -> None:
    for file, png in finding.pictures.items():
        _whole(out / file, png)
    if finding.lines:
        _whole(out / f"{name}.csv", as_csv(finding.lines).encode())


def _whole(file: Path, data: bytes) -> None:
    """Write a file whole or not at all."""
    with replacing(file) as half:
        half.write_bytes(data)
