"""The two plots of mAP by dimension: by layer and picture size, and by weighting."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from crow.evaluate.figures import COLOURS, Curve, curves
from crow.evaluate.paper.bench import EXPANSION, Bench
from crow.evaluate.paper.finding import NAMES, Finding, Line, line_of
from crow.recipe import Recipe, RecipeError

LAYERS = ("pool5", "conv5_3", "pool4", "conv4_3")  # in the paper's colours below
WEIGHTINGS = ("crow", "ucrow+sw", "ucrow+ssw", "ucrow")


def layer_recipes(bench: Bench) -> dict[str, Recipe]:
    """uCroW on each layer at the original size, and on the last two at 586 x 586."""
    try:
        original = {layer.removesuffix("_3"): bench.recipe("ucrow", layer) for layer in LAYERS}
        square = {f"{layer.removesuffix('_3')} ({bench.square})": bench.recipe("ucrow", layer) for layer in LAYERS[:2]}
    except RecipeError:
        return {}
    return original | {name: recipe.sized(bench.square) for name, recipe in square.items()}


def layers(bench: Bench) -> Finding:
    """Fig. layers."""
    column = bench.column()
    lines = [
        line_of("fig. layers", name, column.name, result)
        for name, recipe in layer_recipes(bench).items()
        for result in bench.measure(column, [recipe])
    ]
    colours = {name: COLOURS[i] for i, name in enumerate(("pool5", "conv5", "pool4", "conv4"))}
    picture = _drawn(lines, colours, f"uCroW by layer and picture size, {column.name}")
    notes = (f"Solid: size {bench.size}; dashed: {bench.square} pixels.", *_few(bench))
    return Finding("Image size and layer", "fig. layers", tuple(lines), {"layers.png": picture}, notes)


def weighting_recipes(bench: Bench) -> list[Recipe]:
    """All combinations of the two weights."""
    return [bench.recipe(name) for name in WEIGHTINGS]


def paris_dim(bench: Bench) -> Finding:
    """Fig. paris_dim, with the query expansion that is in the figure's data but was not drawn."""
    column, place = bench.column(), "fig. paris_dim"
    lines = [
        line_of(place, NAMES[r.record["recipe"]], column.name, r)
        for r in bench.measure(column, weighting_recipes(bench))
    ]
    expanded = bench.measure(column, [bench.recipe("crow")], expand=EXPANSION)
    lines += [line_of(place, "CroW + QE", column.name, r) for r in expanded]
    colours = {NAMES[name]: COLOURS[i] for i, name in enumerate(WEIGHTINGS)}
    picture = _drawn(lines, colours | {"CroW + QE": COLOURS[4]}, f"Dimensions by weighting, {column.name}")
    notes = (*_few(bench), *bench.about_expansion)
    return Finding("Final dimensions by weighting", place, tuple(lines), {"paris_dim.png": picture}, notes)


def _drawn(lines: Sequence[Line], colours: Mapping[str, str], title: str) -> bytes:
    """A curve per row, published values beside it as hollow marks, the 95 % band of the first row only."""
    drawn: list[Curve] = []
    for i, name in enumerate(dict.fromkeys(line.row for line in lines)):
        mine = sorted((line for line in lines if line.row == name), key=lambda line: line.d or 0)
        colour = colours[name.partition(" (")[0]]
        low, high = ([v.low or 0.0 for v in mine], [v.high or 0.0 for v in mine]) if not i else (None, None)
        drawn.append(Curve(name, _x(mine), [float(v.ours or 0) for v in mine], colour, "(" in name, low=low, high=high))
        said = [v for v in mine if isinstance(v.published, float)]
        if said:
            values = [float(v.published or 0) for v in said]
            drawn.append(Curve(f"{name}, published", _x(said), values, colour, "(" in name, hollow=True))
    first = lines[0].row if lines else ""
    return curves(drawn, "dimensions", "mAP", f"{title} (band: 95 % interval of {first})")


def _x(lines: Sequence[Line]) -> list[float]:
    return [float(line.d or 0) for line in lines]


def _few(bench: Bench) -> tuple[str, ...]:
    return (
        () if bench.paper else ("In place of 512, 256 and 128: " + (", ".join(map(str, bench.dims)) or "none") + ".",)
    )
