"""The figures that look into feature maps, and those that show what was found."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crow.evaluate import figures, show, tally
from crow.evaluate.datasets import Query
from crow.evaluate.features import Item
from crow.evaluate.figures import Pixels, Strip
from crow.evaluate.paper.bench import Bench, Column, asked
from crow.evaluate.paper.finding import Finding, Line, Skipped
from crow.evaluate.run import Result
from crow.evaluate.tally import Tally
from crow.extract.images import PictureError, load

LOOKED_AT = ("paris_notredame_000035", "paris_notredame_000107", "paris_pantheon_000014", "paris_pantheon_000013")
FIELDS = 7  # highest and lowest, as in the paper's figure
RARE, TOP = 10, 10  # channels; results
HIGH, SMALL = 190, 92  # pixels of the figure: pictures, receptive fields


@dataclass(frozen=True)
class Look:
    """One picture, its spatial weights, and the places where its rarest channels fire."""

    name: str
    pixels: Pixels
    weights: NDArray[Any]  # (h, w)
    channels: tuple[int, ...]
    places: NDArray[np.bool_]  # (h, w)
    field: int  # pixels that one place looks at
    stride: int


def counted(bench: Bench) -> list[Tally]:
    """The counts that both figures of sparsity are made of."""
    return [Tally(bench.recipe("crow"))]


def sparsity2(bench: Bench) -> Finding:
    """Fig. sparsity2: the mean spatial weight by the sparsity at its place, over all pictures."""
    column = bench.column()
    table = bench.table(column, counted(bench)[0])
    counts = table.stack(item for item in map(Item, column.dataset.images.values()) if item in table.rows)
    sparsity, weight, places = tally.mean_weights(counts)
    title = f"{column.name}: {int(places.sum()):,} places of {len(counts)} pictures"
    labels = ("sparsity of the channels at a place", "mean spatial weight (largest of a picture = 1)")
    picture = figures.scatter(sparsity, weight, places, *labels, title)
    lines = [
        Line(f"sparsity {level:.4f}", name, None, float(value))
        for level, *values in zip(sparsity, weight, places, strict=True)
        for name, value in zip(("mean weight", "places"), values, strict=True)
    ]
    note = "One point per number of channels that fire at a place; fainter points are means over few places."
    files = {"sparsity2.png": picture}
    return Finding("Spatial weight by channel sparsity", "fig. sparsity2", tuple(lines), files, (note,), listed=False)


def sparsity_correlation(bench: Bench) -> Finding:
    """Fig. sparsity_correlation: the correlation of channel sparsities over the query set, sorted by class."""
    column = bench.column()
    table = bench.table(column, counted(bench)[0])
    queries = [q for q in sorted(column.dataset.queries, key=lambda q: (class_of(q), q.name)) if asked(q) in table.rows]
    if len(queries) < 2:
        raise Skipped("fewer than two queries")
    values = tally.correlations(table.rows[asked(query)] for query in queries)
    groups = [class_of(query) for query in queries]
    same = np.equal.outer(np.array(groups), np.array(groups))
    other = ~same
    np.fill_diagonal(same, False)
    means = {"pictures of the same class": values[same], "pictures of different classes": values[other]}
    lines = [Line(f"mean correlation, {k}", column.name, None, float(v.mean())) for k, v in means.items() if v.size]
    title = f"Correlation of channel sparsities, {len(queries)} queries, {column.name}"
    picture = figures.matrix(values, groups, title, "correlation")
    place = "fig. sparsity_correlation"
    return Finding("Correlation of channel sparsities", place, tuple(lines), {"sparsity_correlation.png": picture})


def class_of(query: Query) -> str:
    """Which thing a query shows: louvre_3 is of louvre, et/et001.jpg of et, 100100 of 1001."""
    folder, inside, _ = query.name.partition("/")
    return folder if inside else query.name.rpartition("_")[0] or query.name[:4]


def patches(bench: Bench) -> Finding:
    """Fig. patches: spatial weights, and the receptive fields of the highest and the lowest."""
    rows = []
    for look in looks(bench):
        fields = [show.window(look.pixels, i, j, look.field, look.stride) for i, j in show.ranked(look.weights)]
        blocks = [[look.pixels, show.heat(look.pixels, look.weights)], fields[:FIELDS], fields[::-1][:FIELDS]]
        rows.append(
            (
                f"{_label(look.name, 40)}: the {FIELDS} highest weighted places above, the {FIELDS} lowest below",
                blocks,
            )
        )
    sized = [(name, blocks, (HIGH, SMALL, SMALL)) for name, blocks in rows]
    picture = figures.panels(sized, "Spatial weights (warm: high) and what the places look at")
    return Finding("Spatial weighting", "fig. patches", (), {"patches.png": picture}, (_chosen(bench),))


def idfviz(bench: Bench) -> Finding:
    """Fig. idfviz: where the channels with the highest weights fire."""
    rows, lines = [], []
    for look in looks(bench):
        count, whole = int(look.places.sum()), look.places.size
        text = f"{_label(look.name, 40)}: the {len(look.channels)} rarest channels fire at {count} of {whole} places"
        rows.append((text, [[look.pixels, show.lit(look.pixels, look.places)]], (HIGH,)))
        lines.append(Line(look.name, "share of places lit", None, count / whole))
    picture = figures.panels(rows, "Regions of the rarest channels that fire at all")
    note = (
        "Channels that never fire have the highest weight of all and show nothing: the rarest that do fire are shown."
    )
    return Finding("Channel weighting", "fig. idfviz", tuple(lines), {"idfviz.png": picture}, (_chosen(bench), note))


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


def result_recipes(bench: Bench) -> list[Any]:
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
            title = f"{_label(answer.query, 32)}\nAP {100 * (answer.ap or 0):.0f}"
            asked_for = figures.thumbnail(_pixels(query.path), query.box)
            strips.append(Strip(asked_for, [(pictures[name], verdict) for name, verdict in shown], title))
    return strips


def _label(name: str, signs: int) -> str:
    """A picture's name without its ending, shortened."""
    return figures.short(name.rpartition(".")[0] or name, signs)


def _pixels(path: Path) -> Pixels:
    """A picture as it is; grey where it does not decode."""
    try:
        return load(path).pixels
    except PictureError:
        return np.full((96, 96, 3), 221, np.uint8)


def looks(bench: Bench) -> tuple[Look, ...]:
    """The four pictures that are looked into, through the network once for both figures."""
    if not looked_at(bench):
        raise Skipped(f"none of {', '.join(LOOKED_AT)} is there")
    if not bench.looks:
        bench.looks = tuple(_look(bench))
    return bench.looks


def _look(bench: Bench) -> Iterator[Look]:
    from crow.extract.describer import Describer
    from crow.extract.images import prepare
    from crow.extract.networks import receptive_field
    from crow.framework import explain

    recipe = bench.recipe("crow")
    upright = bench.column().dataset.upright == "exif"
    recipe = replace(recipe, view=replace(recipe.view, upright=upright))
    machine = bench.machine
    describer = Describer(recipe, machine.engine, machine.device, machine.weights)
    field, stride = receptive_field(recipe)
    for name in looked_at(bench):
        pixels = prepare(bench.column().dataset.images[name], recipe.view).pixels
        x = next(iter(describer.engine.maps([pixels])))
        channels, places = explain.rarest_active(x, recipe, RARE)
        yield Look(name, pixels, explain.spatial_map(x, recipe), tuple(channels), places, field, stride)


def looked_at(bench: Bench) -> Sequence[str]:
    """The paper's four pictures; elsewhere the first two of each of the two largest groups."""
    column = bench.column()
    if bench.paper:
        return [name for name in LOOKED_AT if name in column.dataset.images]
    groups: dict[str, list[str]] = {}
    for query in column.dataset.queries:
        groups.setdefault(class_of(query), []).append(query.name)
    largest = sorted(groups, key=lambda name: (-len(groups[name]), name))[:2]
    return [name for group in largest for name in sorted(groups[group])[:2]]


def _chosen(bench: Bench) -> str:
    return "The paper's four pictures." if bench.paper else "The first two pictures of each of the two largest groups."
