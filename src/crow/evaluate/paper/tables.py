"""The tables, and the numbers that the paper gives in its text."""

from __future__ import annotations

from dataclasses import replace

from crow.evaluate.paper.bench import EXPANSION, Bench, Column
from crow.evaluate.paper.finding import NAMES, Finding, Line, Skipped, line_of
from crow.evaluate.paper.published import POOLING, PUBLISHED, SEARCH_COLUMNS
from crow.evaluate.protocols import compare
from crow.evaluate.run import Result
from crow.recipe import RECIPES, Recipe, Spatial

SEARCHED = ("ucrow", "crow", "spoc", "rmac", "mac")
NORMS = {"L2 (the paper's choice)": 2.0, "L1": 1.0, "inf": float("inf"), "a = 0.5": 0.5}
TOP = 10


def whiten(bench: Bench) -> Finding:
    """Tab. whiten: the same search, its whitening learned on different sets."""
    column, lines, notes = bench.column(), [], []
    if not bench.dims:
        raise Skipped("too few pictures to learn a whitening on")
    for name, teacher in bench.teachers.items():
        taught = replace(column, teacher=teacher)
        for result in bench.measure(taught, whitening_recipes(bench), _largest(bench)):
            lines.append(line_of("tab. whiten", NAMES[result.record["recipe"]], name, result))
    if bench.paper:
        absent = [n for n in ("Oxford", "Holidays", "Oxford100k") if n not in bench.teachers]
        notes += [f"Skipped: {name}: {bench.missing[name]}" for name in absent]
    elif lines:
        notes.append(
            "Learning on what is searched, as two of these columns do, is no fair test: it stands for overfitting."
        )
    return Finding(
        f"Where the whitening is learned, searching {column.name}", "tab. whiten", tuple(lines), notes=tuple(notes)
    )


def whitening_recipes(bench: Bench) -> list[Recipe]:
    """uCroW and CroW."""
    return [bench.recipe("ucrow"), bench.recipe("crow")]


def search(bench: Bench) -> Finding:
    """Tab. search: every set with and without distractors, and the rows of others computed by us."""
    lines, notes = [], []
    names = SEARCH_COLUMNS if bench.paper else tuple(bench.columns)
    for name in names:
        if name not in bench.columns:
            notes.append(f"Skipped: {name}: {bench.missing[name]}")
            continue
        column = bench.columns[name]
        for result in bench.measure(column, search_recipes(bench)):
            row = NAMES.get(result.record["recipe"], result.record["recipe"])
            lines.append(line_of("tab. search", row, name, result))
        for result in bench.measure(column, [bench.recipe("crow")], expand=EXPANSION):
            lines.append(line_of("tab. search", "CroW + QE", name, result))
    if not lines:
        raise Skipped("; ".join(notes))
    notes.append(
        f"SPoC, R-MAC and MAC are computed here on the same network and under the same protocol; the values published "
        f"in their rows are their authors' own. QE: the sum of the top {EXPANSION}, the query left out."
    )
    notes += bench.about_expansion
    lines.sort(key=lambda line: -(line.d or 0))
    return Finding("Image search", "tab. search", tuple(lines), notes=tuple(notes))


def search_recipes(bench: Bench) -> list[Recipe]:
    """The rows of the search table."""
    return [bench.recipe(name) for name in SEARCHED] + [r for r in bench.more if r.name not in SEARCHED]


def max_pooling(bench: Bench) -> Finding:
    """The note on max pooling: instead of the sum, with and without whitening."""
    column, lines = bench.column(), []
    recipes = max_recipes(bench)
    titles = {"ucrow": "sum pooling (uCroW)", "mac": "max pooling (MAC)"}
    for kind, dims in (("not whitened", ()), ("whitened", bench.dims)):
        for result in bench.measure(column, recipes, dims) if dims or kind == "not whitened" else []:
            lines.append(line_of("text on max pooling", titles[result.record["recipe"]], kind, result))
    return Finding(f"Max pooling instead of the sum, {column.name}", "text on max pooling", tuple(lines))


def max_recipes(bench: Bench) -> list[Recipe]:
    """Sum and maximum over all places, without weights."""
    return [bench.recipe("ucrow"), bench.recipe("mac")]


def norms(bench: Bench) -> Finding:
    """The note on the norm of the spatial weight, and beside it the root that does change vectors."""
    column, lines = bench.column(), []
    names = list(norm_recipes(bench))
    for name, recipe in norm_recipes(bench).items():
        lines += [line_of("text on norms", name, column.name, r) for r in bench.measure(column, [recipe])]
    spread = [
        max(v) - min(v)
        for d in {line.d for line in lines}
        if (v := [float(x.ours or 0) for x in lines if x.d == d and x.row in names[: len(NORMS)]])
    ]
    lines.append(Line("largest difference between norms", column.name, None, max(spread, default=None), "< 0.01"))
    note = (
        "The norm divides all weights of a picture by one number, and the L2 norm of step 5 cancels it: whatever a is, "
        "vectors agree up to rounding. The root b does change them; the last rows vary it."
    )
    return Finding(
        f"The norm of the spatial weight, CroW on {column.name}", "text on norms", tuple(lines), notes=(note,)
    )


def norm_recipes(bench: Bench) -> dict[str, Recipe]:
    """CroW under each norm of its spatial weight, and under other roots."""
    crow = bench.recipe("crow")
    by_norm = {name: replace(crow, spatial=Spatial("response", a=a, b=2.0)) for name, a in NORMS.items()}
    roots = {f"L2, b = {b:g}": replace(crow, spatial=Spatial("response", a=2.0, b=b)) for b in (1.0, 4.0)}
    return by_norm | roots


def spoc_layer(bench: Bench) -> Finding:
    """The remark that CroW's weights, instead of the centre prior, help SPoC's features."""
    column = bench.column()
    results = bench.measure(column, spoc_recipes(bench), _largest(bench))
    by_dim: dict[int, dict[str, Result]] = {}
    for result in results:
        by_dim.setdefault(result.record["dim"], {})[result.record["recipe"]] = result
    lines = [line_of("text on SPoC", NAMES[r.record["recipe"]], column.name, r) for r in results]
    for d, pair in by_dim.items():
        if len(pair) == 2:
            lines.append(_gain(column, d, pair["crow-conv5"], pair["spoc"]))
    return Finding(f"CroW's weights on SPoC's layer, {column.name}", "text on SPoC", tuple(lines))


def spoc_recipes(bench: Bench) -> list[Recipe]:
    """SPoC, and CroW's weights on the same layer."""
    return [bench.recipe("spoc"), bench.recipe("crow-conv5")]


def _gain(column: Column, d: int, first: Result, second: Result) -> Line:
    """First minus second in points of mAP, with the bounds of the paired test."""
    found = compare([a.ap for a in first.answers], [a.ap for a in second.answers])
    assert found is not None
    published = PUBLISHED["text on SPoC"].get(("gain in points", column.name, d))
    points = (100 * found.mean, published, 100 * found.low, 100 * found.high)
    return Line("gain in points", column.name, d, *points, {**first.record, "p": found.p})


def top10(bench: Bench) -> Finding:
    """The count of false results in the top 10 of all queries."""
    column = bench.column()
    results = bench.measure(column, whitening_recipes(bench), bench.dims[:1])
    lines, row = [], "false results in the top 10"
    for result in results:
        counts = [count_false(answer.shown, answer.total) for answer in result.answers]
        places = sum(min(TOP, answer.total) for answer in result.answers)
        d, crow = result.record["dim"], result.record["recipe"] == "crow"
        published = PUBLISHED["fig. res"].get((row, column.name, d)) if crow else None
        title = f"{row}, {NAMES[result.record['recipe']]}"
        lines.append(Line(title, column.name, d, sum(counts), published, record=result.record))
        lines.append(Line(f"of so many places, {NAMES[result.record['recipe']]}", column.name, d, places))
    note = f"Where a query has fewer than {TOP} right pictures, only as many places are looked at."
    return Finding(f"False results in the top {TOP}, {column.name}", "fig. res", tuple(lines), notes=(note,))


def count_false(shown: tuple[tuple[str, str], ...], total: int) -> int:
    """How many of the first 10 results, or of as many as could be right, are wrong; what is passed over is not."""
    return sum(verdict == "wrong" for _, verdict in shown[: min(TOP, total)])


POOL_WORDS = {"none": "none", "max": "max", "sum": "sum"}
SPATIAL_WORDS = {"centre": "centering prior", "uniform": "uniform", "response": "SW"}
CHANNEL_WORDS = {"uniform": "uniform", "sparsity": "SSW"}


def spocsup(bench: Bench) -> Finding:
    """Tab. spocsup, read off the recipes themselves."""
    lines = []
    for i, name in enumerate(("spoc", "ucrow", "crow")):
        recipe = RECIPES[name]
        words = (
            POOL_WORDS[recipe.pool.kind],
            SPATIAL_WORDS[recipe.spatial.kind],
            CHANNEL_WORDS[recipe.channel.kind],
            "sum",  # the one aggregation there is
        )
        for (step, said), word in zip(POOLING.items(), words, strict=True):
            lines.append(Line(step, NAMES[name], None, word, said[i]))
    lines.sort(key=lambda line: line.row)
    return Finding("Pooling and weighting", "tab. spocsup", tuple(lines))


def _largest(bench: Bench) -> tuple[int, ...]:
    """The two largest dims, as in the paper's tables."""
    return bench.dims[:2]
