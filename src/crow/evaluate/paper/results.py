"""The figures that show what was found: in few dimensions, and the top 10 of every query."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from crow.evaluate import figures
from crow.evaluate.figures import Pixels, Strip
from crow.evaluate.paper.bench import Bench, Column
from crow.evaluate.paper.finding import Finding, Line, Skipped
from crow.evaluate.paper.looks import class_of, label
from crow.evaluate.run import Result
from crow.extract.images import PictureError, load
from crow.recipe import Recipe

TOP = 10


def resgood(bench: Bench) -> Finding:
    """Fig. resgood: results of vectors of 32 dimensions, for the first query of each class."""
    column, d = bench.column(), bench.smallest
    result = _crow(bench, column, d)
    firsts = {class_of(query): query.name for query in reversed(column.dataset.queries)}
    picture = figures.strips(_strips(column, result, set(firsts.values())), f"CroW at d = {d}, {column.name}")
    note = "The first query of each class; the paper does not say how its examples were chosen."
    return _found("Results in few dimensions", "fig. resgood", "resgood.png", picture, result, column, note)


def res(bench: Bench) -> Finding:
    """Fig. res: the top 10 of every query."""
    column = bench.column()
    result = _crow(bench, column, bench.dims[0] if bench.dims else None)
    everything = {query.name for query in column.dataset.queries}
    title = f"CroW at d = {result.record['dim']}, top {TOP} of all {len(everything)} queries, {column.name}"
    picture = figures.strips(_strips(column, result, everything), title, columns=2)
    note = f"Where fewer than {TOP} pictures are right, only as many places are shown."
    return _found(f"The top {TOP} of all queries", "fig. res", "res.png", picture, result, column, note)


def result_recipes(bench: Bench) -> list[Recipe]:
    """CroW alone."""
    return [bench.recipe("crow")]


def _crow(bench: Bench, column: Column, d: int | None) -> Result:
    results = bench.measure(column, result_recipes(bench), (d,) if d else ())
    if not results:
        raise Skipped(f"the whitening has no {d} dimensions")
    return results[0]


def _found(title: str, place: str, file: str, picture: bytes, result: Result, column: Column, note: str) -> Finding:
    record = result.record
    line = Line(
        "mAP of all queries",
        column.name,
        record["dim"],
        record["map"],
        None,
        record["ci_low"],
        record["ci_high"],
        record,
    )
    return Finding(title, place, (line,), {file: picture}, (note,))


def _strips(column: Column, result: Result, wanted: set[str]) -> list[Strip]:
    """The results of the wanted queries as strips, in the order of the queries."""
    pictures: dict[str, Pixels] = {}
    queries = {query.name: query for query in column.dataset.queries}
    strips = []
    for answer in result.answers:
        if answer.query in wanted:
            query = queries[answer.query]
            shown = answer.shown[: min(TOP, answer.total)]
            for name, _ in shown:
                if name not in pictures:
                    pictures[name] = figures.thumbnail(_pixels(column.dataset.images[name]))
            title = f"{label(answer.query, 32)}\nAP {100 * (answer.ap or 0):.0f}"
            asked_for = figures.thumbnail(_pixels(query.path), query.box)
            strips.append(Strip(asked_for, [(pictures[name], verdict) for name, verdict in shown], title))
    return strips


def _pixels(path: Path) -> Pixels:
    """A picture as it is; grey where it does not decode."""
    try:
        return load(path).pixels
    except PictureError:
        return np.full((96, 96, 3), 221, np.uint8)
