"""The figures that look into feature maps: weights, channels, and how sparse they are."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crow.evaluate import figures, show, tally
from crow.evaluate.datasets import Query
from crow.evaluate.features import Item
from crow.evaluate.figures import Pixels
from crow.evaluate.paper.bench import Bench, asked
from crow.evaluate.paper.finding import Finding, Line, Skipped
from crow.evaluate.tally import Tally

LOOKED_AT = ("paris_notredame_000035", "paris_notredame_000107", "paris_pantheon_000014", "paris_pantheon_000013")
FIELDS = 7  # highest and lowest, as in the paper's figure
RARE = 10  # channels
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
        ranked = show.ranked(look.weights)
        wanted = [*ranked[:FIELDS], *ranked[::-1][:FIELDS]]
        fields = [show.window(look.pixels, i, j, look.field, look.stride) for i, j in wanted]
        fields = [figures.thumbnail(field, side=SMALL) for field in fields]
        blocks = [
            [look.pixels, show.heat(look.pixels, look.weights)],
            fields[: len(fields) // 2],
            fields[len(fields) // 2 :],
        ]
        rows.append(
            (
                f"{label(look.name, 40)}: the {FIELDS} highest weighted places above, the {FIELDS} lowest below",
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
        text = f"{label(look.name, 40)}: the {len(look.channels)} rarest channels fire at {count} of {whole} places"
        rows.append((text, [[look.pixels, _lit(look)]], (HIGH,)))
        lines.append(Line(look.name, "share of places lit", None, count / whole))
    picture = figures.panels(rows, "Where the rarest channels fire (bright), and what those places look at")
    note = (
        "Channels that never fire have the highest weight of all and show nothing: the rarest that do fire are shown."
    )
    return Finding("Channel weighting", "fig. idfviz", tuple(lines), {"idfviz.png": picture}, (_chosen(bench), note))


def _lit(look: Look) -> Pixels:
    """The picture, bright at the places where something fires, dimmer where these places look, dark elsewhere."""
    height, width = look.pixels.shape[:2]
    light = np.full((height, width, 1), 0.2)
    for reach, strength in ((look.field, 0.6), (look.stride, 1.0)):
        for i, j in zip(*np.nonzero(look.places), strict=True):
            y, x = (i + 0.5) * look.stride, (j + 0.5) * look.stride
            rows = slice(max(0, round(y - reach / 2)), round(y + reach / 2))
            light[rows, max(0, round(x - reach / 2)) : round(x + reach / 2)] = strength
    return (look.pixels * light).astype(np.uint8)


def label(name: str, signs: int) -> str:
    """A picture's name without its ending, shortened."""
    return figures.short(name.rpartition(".")[0] or name, signs)


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
