"""What the report is made on: the sets found on disk, what their whitening is learned on, and what was asked for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from crow.evaluate.datasets import Dataset, DatasetError, Query, load
from crow.evaluate.features import HERE, Item, Machine, Progress, Table, every, tables
from crow.evaluate.paper.finding import Skipped
from crow.evaluate.paper.published import HOLIDAYS, OXFORD, PARIS
from crow.evaluate.run import Result, Settings, cropped, evaluate
from crow.evaluate.tally import Tally, Wanted
from crow.evaluate.teach import NOBODY, Teacher
from crow.framework.reduce import Whitening
from crow.recipe import RECIPES, Recipe, Size

DIMS = (512, 256, 128)  # the paper's
EXPANSION = 10  # the paper's M
SETS = {PARIS: "paris6k", OXFORD: "oxford5k", HOLIDAYS: "holidays", "Oxford100k": "oxford100k"}
TEACHERS = {PARIS: OXFORD, OXFORD: PARIS, HOLIDAYS: "Oxford100k"}  # as the paper does
ORIGINAL = Size()
SQUARE = Size("square", 586)  # to which SPoC's authors bring every picture


@dataclass(frozen=True)
class Column:
    """A set that is searched, and what its whitening is learned on."""

    name: str
    dataset: Dataset
    teacher: Teacher


@dataclass
class Bench:
    """Everything an exhibit may look at; what is not there is in `missing`, with the reason."""

    columns: Mapping[str, Column]
    main: str  # the column that the paper's Paris stands for
    teachers: Mapping[str, Teacher]  # what table `whiten` compares
    missing: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    dims: tuple[int, ...] = DIMS
    size: Size = ORIGINAL
    square: Size = SQUARE
    network: str = "vgg16"
    more: tuple[Recipe, ...] = ()  # further rows of the search table
    machine: Machine = HERE
    progress: Progress = every
    learned: dict[tuple[str, str], Whitening] = field(default_factory=dict)  # by teacher and recipe
    looks: tuple[Any, ...] = ()  # pictures looked into, once for all figures of them
    amiss: dict[str, None] = field(default_factory=dict)  # every picture and query that went wrong, once

    @property
    def paper(self) -> bool:
        """Whether these are the paper's own sets, so that its values may stand beside ours."""
        return self.main == PARIS

    @property
    def smallest(self) -> int:
        """The dimension that the paper's 32 stands for."""
        if not self.dims:
            raise Skipped("too few pictures to learn a reduction on")
        return 32 if self.paper else min(32, self.dims[0])

    @property
    def about_expansion(self) -> tuple[str, ...]:
        """What the paper's M means where few pictures are right."""
        sizes = [len(labels) - 1 for q in self.column().dataset.queries if (labels := q.labels.get("group"))]
        if self.paper or not sizes or min(sizes) >= EXPANSION:
            return ()
        right = f"{min(sizes)} to {max(sizes)}" if min(sizes) < max(sizes) else str(min(sizes))
        return (
            f"QE sums the top {EXPANSION}, as in the paper; a query here has but {right} right pictures, so that "
            "false ones enter the sum.",
        )

    def column(self, name: str | None = None) -> Column:
        """A column, by default the main one."""
        name = name or self.main
        if name not in self.columns:
            raise Skipped(self.missing.get(name, f"{name} is not there"))
        return self.columns[name]

    def recipe(self, name: str, layer: str | None = None) -> Recipe:
        """One of RECIPES as this report takes it: at its size, on its network."""
        from crow.extract.networks import on_network

        recipe = on_network(RECIPES[name].sized(self.size), self.network)
        return recipe.at(layer) if layer else recipe

    def measure(
        self, column: Column, recipes: Sequence[Recipe], dims: tuple[int, ...] | None = None, expand: int = 0
    ) -> list[Result]:
        """Every recipe at every dim that its whitening has; with dims () unreduced."""
        dims = self.dims if dims is None else dims
        results: list[Result] = []
        for recipe in recipes:
            teacher, kept = self._taught(column, recipe, dims)
            if kept or not dims:
                settings = Settings((recipe,), kept, expand=expand, machine=self.machine)
                evaluation = evaluate(column.dataset, settings, teacher, self.progress)
                self.amiss |= dict.fromkeys(evaluation.amiss)
                results += evaluation.results
        return results

    def _taught(self, column: Column, recipe: Recipe, dims: tuple[int, ...]) -> tuple[Teacher, tuple[int, ...]]:
        """The column's teacher with the whitening of this recipe, learned once; and the dims that it has."""
        if not dims or recipe.regional:  # whose regions are whitened, not its vectors
            return (column.teacher if dims else NOBODY), dims
        turned = _as_in(column, [recipe])[0]
        key = (column.teacher.name, turned.key())
        if key not in self.learned:
            lessons = [Item(path) for path in column.teacher.pictures]
            table = tables(lessons, [turned], self.machine, progress=self.progress)[0]
            rows = table.stack(item for item in lessons if item in table.rows)
            self.learned[key] = Whitening.fit(rows, recipe=table.recipe, source=column.teacher.name)
        learned = self.learned[key]
        return replace(column.teacher, learned=learned), tuple(d for d in dims if d <= learned.dim)

    def describe(self, wanted: Mapping[str, Iterable[Wanted]]) -> None:
        """Bring every picture of a column through the network once for all that the report wants of it."""
        for name, recipes in wanted.items():
            if name in self.columns:
                column = self.columns[name]
                plain = [r for r in _as_in(column, recipes) if not r.regional]  # those wait for their whitening
                tables(items(column), plain, self.machine, progress=self.progress)

    def table(self, column: Column, wanted: Wanted) -> Table:
        """What a recipe, or a tally, made of every picture of a column."""
        return tables(items(column), _as_in(column, [wanted]), self.machine, progress=self.progress)[0]


def items(column: Column) -> list[Item]:
    """Everything of a column that goes through the network."""
    pictures = [Item(path) for path in column.dataset.images.values()]
    lessons = [Item(path) for path in column.teacher.pictures]
    return [*pictures, *(asked(query) for query in column.dataset.queries), *lessons]


def asked(query: Query) -> Item:
    """A query as it goes through the network."""
    return cropped(query, "box")


def _as_in(column: Column, wanted: Iterable[Wanted]) -> list[Wanted]:
    """Recipes with the orientation that goes with the column's set."""
    upright = column.dataset.upright == "exif"
    turned: list[Wanted] = []
    for one in wanted:
        recipe = one.recipe if isinstance(one, Tally) else one
        recipe = replace(recipe, view=replace(recipe.view, upright=upright))
        turned.append(Tally(recipe) if isinstance(one, Tally) else recipe)
    return list({one.key(): one for one in turned}.values())


def of_benchmarks(data: Path) -> Bench:
    """The paper's sets, as far as they lie below a folder."""
    found: dict[str, Dataset] = {}
    missing: dict[str, str] = {}
    for name, official in SETS.items():
        try:
            found[name] = load(official, data)
        except DatasetError as error:
            missing[name] = str(error)
    teachers = {name: Teacher(SETS[name], tuple(d.images.values())) for name, d in found.items()}
    columns: dict[str, Column] = {}
    for name, teacher in TEACHERS.items():
        for column, needs in ((name, ()), (f"{name} +Oxf100k", ("Oxford100k",))):
            lacking = [n for n in dict.fromkeys((name, teacher, *needs)) if n not in found]
            if lacking:
                missing[column] = "; ".join(missing[n] for n in lacking)
            else:
                more = found["Oxford100k"].images.values() if needs else ()
                columns[column] = Column(column, found[name].with_distractors(more), teachers[teacher])
    return Bench(columns, PARIS, {n: t for n, t in teachers.items() if n != PARIS}, missing)


def of_groups(data: Path) -> Bench:
    """Any grouped folder: every second of its distractors teaches the whitening, the others are searched among."""
    dataset = load("groups", data)
    asked = {query.name for query in dataset.queries}
    loose = [name for name in dataset.images if name not in asked]
    lessons, distracting = loose[::2], loose[1::2]
    alone = {name: path for name, path in dataset.images.items() if name in asked}
    among = {**alone, **{name: dataset.images[name] for name in distracting}}
    halves = {
        "learning half": Teacher("learning half", tuple(dataset.images[name] for name in lessons)),
        "searched half": Teacher("searched half", tuple(dataset.images[name] for name in distracting)),
        "the groups": Teacher("the groups", tuple(alone.values())),
    }
    teacher = halves["learning half"] if len(lessons) > 2 else NOBODY
    dims = dims_for(len(lessons))
    columns = {
        "groups": Column("groups", replace(dataset, images=alone, distractors=0), teacher),
        "groups +distractors": Column(
            "groups +distractors", replace(dataset, images=among, distractors=len(distracting)), teacher
        ),
    }
    notes = (
        f"{len(asked)} pictures of {len({name.partition('/')[0] for name in asked})} groups are asked, each among the "
        f"others and {len(distracting)} distractors; the other {len(lessons)} distractors teach the whitening.",
        _about_dims(dims, len(lessons)),
        "No published values stand here: they belong to Paris, Oxford and Holidays.",
        f"{len(asked)} queries are few: a difference inside the 95 % intervals proves nothing.",
    )
    usable = {name: teacher for name, teacher in halves.items() if len(teacher.pictures) > 2}
    return Bench(columns, "groups +distractors", usable, notes=notes, dims=dims)


def dims_for(pictures: int) -> tuple[int, ...]:
    """The paper's dims, or the three largest powers of two that a whitening learned on so few pictures can have."""
    rank = pictures - 1
    return DIMS if rank >= DIMS[0] else tuple(d for d in (2**i for i in range(8, 0, -1)) if d <= rank)[:3]


def _about_dims(dims: tuple[int, ...], pictures: int) -> str:
    if dims == DIMS:
        return "The dimensions are the paper's."
    if not dims:
        return "That is too few pictures to learn a reduction on: vectors are compared as they are."
    shown = ", ".join(map(str, dims))
    return (
        f"The centred vectors of {pictures} pictures span at most {pictures - 1} dimensions, so the paper's 512, 256 "
        f"and 128 cannot be had here: {shown} stand in their place."
    )
