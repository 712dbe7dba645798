"""One evaluation: a dataset and settings in; for each recipe, dim and setting a record and a table of queries out.

dataset = load("oxford5k", "datasets/")
teacher = teacher_for("paris6k", dataset, Path("datasets/"))
evaluation = evaluate(dataset, Settings((RECIPES["crow"].sized("original"),), dims=(512, 256)), teacher)
evaluation.results[0].record["map"]
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any

from crow.evaluate.datasets import Dataset, Query
from crow.evaluate.features import HERE, Item, Machine, Progress, Table, every, tables
from crow.evaluate.protocols import Order, compare, interval, mean, precision_at, precision_within, recall_at
from crow.evaluate.rank import Answer, Vectors, judged, rankings
from crow.evaluate.stream import Stream, rankings_among
from crow.evaluate.teach import NOBODY, Teacher, regional_whitening
from crow.evaluate.upright import turns
from crow.framework.reduce import Whitening
from crow.recipe import RECIPES, Recipe

KAPPAS = (1, 5, 10)  # the k of precision@k and recall@k that the revisited protocol reports
CROPS = ("box", "released", "none")


class EvaluationError(ValueError):
    """Vectors or rankings that cannot be judged."""


class SettingsError(ValueError):
    """Settings that do not go together."""


@dataclass(frozen=True)
class Settings:
    """Everything an evaluation is asked for beside its dataset and what its whitening is learned on."""

    recipes: tuple[Recipe, ...]
    dims: tuple[int, ...] = ()  # none: every axis that the whitening has
    pca: bool = False  # reduce without whitening
    expand: int = 0  # M of the query expansion; the paper takes 10
    expand_with_query: bool = False  # add the query to the sum, as the released code does and the paper does not
    crop: str = "box"  # of the query: the box; as the released code reads it; the whole picture
    upright: str | None = None  # exif, none, or a CSV of turns; None: what goes with the dataset
    machine: Machine = HERE


@dataclass(frozen=True)
class Result:
    """One row of a table, and the queries behind it."""

    record: Mapping[str, Any]
    answers: tuple[Answer, ...]


@dataclass(frozen=True)
class Evaluation:
    """All results on one dataset, and everything that was amiss."""

    dataset: Dataset
    results: tuple[Result, ...]
    failures: Mapping[str, str] = field(default_factory=dict)  # file -> why it gave no vector
    skipped: tuple[str, ...] = ()  # recipes that could not be tried, and why

    @property
    def amiss(self) -> list[str]:
        """One line for everything that went wrong along the way, by name."""
        lines = [f"{path}: {reason}" for path, reason in self.failures.items()] + list(self.dataset.remarks)
        return lines + [f"{name}: named by the ground truth, but there is no picture" for name in self.dataset.missing]


@dataclass(frozen=True)
class Variant:
    """One recipe, and how its vectors are reduced to each dim."""

    recipe: Recipe
    dims: tuple[int | None, ...]
    teacher: str | None = None  # whose regions it was whitened by; its vectors are not reduced again


def evaluate(
    dataset: Dataset,
    settings: Settings,
    teacher: Teacher = NOBODY,
    progress: Progress = every,
    among: Stream | None = None,
) -> Evaluation:
    """Every recipe at every dim; what has been extracted before is read from the cache, `among` as often as needed."""
    settings, images, queries = _items(dataset, settings)
    regional, variants, skipped = _variants(settings, teacher, progress)
    lessons = [Item(path) for path in teacher.pictures]
    wanted = [*images.values(), *queries.values(), *lessons]
    found = tables(wanted, [v.recipe for v in variants], settings.machine, regional, progress)
    results: list[Result] = []
    for variant, table in zip(variants, found, strict=True):
        learned = None if variant.teacher else _learned(table, lessons, settings, teacher)
        names = [name for name, item in images.items() if item in table.rows]
        asked = [query for query in dataset.queries if queries[query.name] in table.rows]
        raw, raw_asked = table.stack(images[n] for n in names), table.stack(queries[q.name] for q in asked)
        for dim in variant.dims:
            reduce = learned.to_dim(dim) if learned and dim else learned
            space = (reduce(raw, table.recipe), reduce(raw_asked, table.recipe)) if reduce else (raw, raw_asked)
            record = _record(dataset, settings, variant, teacher, table) | {"dim": space[0].shape[1]}
            past = partial(among.chunks, table.recipe, table.weights, reduce) if among else None
            results += measure(dataset, names, asked, *space, settings, record, past)
    failures = {str(item.path): reason for table in found for item, reason in table.failures.items()}
    return Evaluation(dataset, tuple(_compared(results)), failures, skipped)


def measure(
    dataset: Dataset,
    names: Sequence[str],
    asked: Sequence[Query],
    images: Vectors,
    queries: Vectors,
    settings: Settings,
    record: Mapping[str, Any],
    among: Callable[[], Iterable[Vectors]] | None = None,
) -> list[Result]:
    """Rank (n, d) images called `names` for (m, d) queries and judge it: one Result per setting of the protocol."""
    places = {name: i for i, name in enumerate(names)}
    alone = [[places[n] for n in query.labels.get("self", ()) if n in places] for query in asked]
    how = settings.expand, settings.expand_with_query
    if among is None:
        return summed_up(dataset, names, asked, rankings(images, queries, alone, *how), record)
    return summed_up(dataset, names, asked, rankings_among(images, queries, alone, among, *how), record)


def summed_up(
    dataset: Dataset, names: Sequence[str], asked: Sequence[Query], orders: Iterable[Order], record: Mapping[str, Any]
) -> list[Result]:
    """One Result per setting of the protocol from one ranking per query."""
    places, past = {name: i for i, name in enumerate(names)}, 0
    shown = [*names, "a distractor"]  # what an order names beyond the pictures streamed past
    by_setting: dict[str, list[Answer]] = {}
    for query, order in zip(asked, orders, strict=True):
        past = max(past, len(order) - len(names))
        for answer in judged(dataset.protocol, query, order, shown, places):
            by_setting.setdefault(answer.setting, []).append(answer)
    return [
        Result({**record, "setting": s or None, **_figures(dataset, names, answers, past)}, tuple(answers))
        for s, answers in by_setting.items()
    ]


def _figures(dataset: Dataset, names: Sequence[str], answers: Sequence[Answer], past: int = 0) -> dict[str, Any]:
    """The numbers of one result: counts (`past`: that streamed past), mAP with its interval, precision and recall at k."""
    aps = [answer.ap for answer in answers]
    counted = [answer for answer in answers if answer.ap is not None]
    low, high = interval(aps) or (None, None)
    precision = precision_within if dataset.protocol == "revisited" else precision_at
    at_k = {f"precision_at_{k}": mean([precision(a.ranks, k) for a in counted]) for k in KAPPAS}
    at_k |= {f"recall_at_{k}": mean([recall_at(a.ranks, a.total, k) for a in counted]) for k in KAPPAS}
    counts = {
        "queries": len(counted),
        "images": len(names) + past,
        "distractors": dataset.distractors + past,
        "missing": len(dataset.missing),
        "failed": len(dataset.images) - len(names),
    }
    return {**counts, "map": mean(aps), "ci_low": low, "ci_high": high, **at_k}


def _items(dataset: Dataset, settings: Settings) -> tuple[Settings, dict[str, Item], dict[str, Item]]:
    """What is to be described for the pictures and for the queries, by name; and the settings made definite."""
    if settings.crop not in CROPS:
        raise SettingsError(f"no crop named {settings.crop!r}; there are: {', '.join(CROPS)}")
    upright = settings.upright or dataset.upright
    turn = {} if upright in ("exif", "none") else turns(upright, dataset)
    recipes = tuple(replace(r, view=replace(r.view, upright=upright == "exif")) for r in settings.recipes)
    images = {name: Item(path, turn=turn.get(name, 0)) for name, path in dataset.images.items()}
    queries = {query.name: cropped(query, settings.crop, turn.get(query.path.stem, 0)) for query in dataset.queries}
    crop = settings.crop if any(query.box for query in dataset.queries) else "none"
    return replace(settings, recipes=recipes, upright=upright, crop=crop), images, queries


def cropped(query: Query, crop: str, turn: int = 0) -> Item:
    """A query's box; or as the released code reads it, (x, y, width, height) and black past the border; or all of it."""
    if crop == "none" or query.box is None:
        return Item(query.path, turn=turn)
    left, top, right, bottom = query.box
    if crop == "released":
        return Item(query.path, (left, top, left + right, top + bottom), "black", turn)
    return Item(query.path, query.box, turn=turn)


def _variants(
    settings: Settings, teacher: Teacher, progress: Progress
) -> tuple[dict[str, Whitening], list[Variant], tuple[str, ...]]:
    """The recipes to try: those that whiten their regions once per dim, with that whitening."""
    if settings.dims and not teacher:
        raise SettingsError("a dim needs something to learn the reduction on: --whiten DATASET, FOLDER, FILE or self")
    regional, variants, skipped = {}, [], []
    for recipe in settings.recipes:
        if not recipe.regional:
            variants.append(Variant(recipe, settings.dims or (None,)))
        elif not teacher.pictures:
            skipped.append(f"{recipe.name}: needs pictures to learn the whitening of its regions on (--whiten)")
        else:
            learned = regional_whitening(teacher, recipe, settings.machine, settings.pca, progress)
            for whitening in [learned.to_dim(dim) for dim in settings.dims] or [learned]:
                regional[whitening.fingerprint] = whitening
                fitted = replace(recipe, regional=whitening.fingerprint)
                variants.append(Variant(fitted, (None,), teacher.name))
    return regional, variants, tuple(skipped)


def _learned(table: Table, lessons: Sequence[Item], settings: Settings, teacher: Teacher) -> Whitening | None:
    """The whitening of one recipe's vectors, with as many axes as the largest dim asked for."""
    if teacher.learned:
        return teacher.learned
    rows = table.stack(item for item in lessons if item in table.rows)
    dim = max(settings.dims, default=None)
    return Whitening.fit(rows, dim, table.recipe, not settings.pca, teacher.name) if len(rows) else None


def _record(dataset: Dataset, settings: Settings, variant: Variant, teacher: Teacher, table: Table) -> dict[str, Any]:
    """Every choice that the numbers hang on."""
    recipe = variant.recipe
    usual = replace(RECIPES.get(recipe.name, recipe), view=recipe.view, regional=recipe.regional)
    return {
        "dataset": dataset.name,
        "recipe": recipe.name,
        "changed": usual.differences(recipe),
        "network": recipe.view.network,
        "layer": recipe.view.layer,
        "size": str(recipe.view.size),
        "whiten": teacher.name,
        "pca": settings.pca,
        "expand": settings.expand,
        "expand_with_query": settings.expand_with_query,
        "crop": settings.crop,
        "upright": settings.upright,
        "weights": table.weights,
        "engine": table.engine,
        "precision": table.precision,
        "archives": dict(dataset.archives),
    }


def _compared(results: Sequence[Result]) -> Iterator[Result]:
    """Each result, set beside that of the first recipe at the same dim and setting by a paired test."""
    first: dict[Any, Result] = {}
    for result in results:
        record = result.record
        against = first.setdefault((record["dim"], record["setting"]), result)
        pairs = {a.query: a.ap for a in against.answers}
        if result is not against and pairs.keys() == {a.query for a in result.answers}:
            found = compare([a.ap for a in result.answers], [pairs[a.query] for a in result.answers])
            if found:
                more = {"against": against.record["recipe"], **_prefixed(asdict(found))}
                result = replace(result, record={**record, **more})
        yield result


def _prefixed(found: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "difference": found["mean"],
        "difference_low": found["low"],
        "difference_high": found["high"],
        "p": found["p"],
    }
