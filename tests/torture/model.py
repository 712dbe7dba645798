"""Model: random operations on an index and on a plain dict, which must always agree; recipes that come back as they went."""

from __future__ import annotations

import importlib.util
import json
import math
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from crow.framework.reduce import Whitening
from crow.recipe import RECIPES, Recipe, RecipeError
from crow.search.index import Index
from crow.search.store import Row, StoreError
from torture.campaign import Lane, Try

STEPS = 200  # operations on one index
EVERY = 20  # steps after which everything is compared, and not only what was touched
OLD = Path(__file__).parents[1] / "search" / "old"


def model(lane: Lane) -> Iterator[Try]:
    """Index after index; between them recipes, and the indexes that older versions wrote."""
    machine = _rules()
    yield from old_indexes(lane)
    while True:
        tempfile.tempdir = str(lane.fresh("model"))
        yield _one(machine, lane.random)
        for _ in range(20):
            yield Try("recipes", _agreed(lambda: recipe_comes_back(lane.random)), count=0)


def _one(machine: Any, random: Random) -> Try:
    """One index with its dict, from creation to the last check."""
    state, history, done = machine(), [], 0
    try:
        state.create()
        for done in range(1, STEPS + 1):
            name, arguments = operation(random)
            history.append(f"{name}{arguments}")
            getattr(state, name)(**arguments)
            refuse_what_is_no_vector(state, random)
            if done % EVERY == 0 or done == STEPS:
                state.same()
        state.teardown()
    except Exception as error:
        last = "; ".join(history[-4:])
        return Try(
            "operations", f"{type(error).__name__}: {' '.join(str(error).split())[:300]} after {last}", done or 1
        )
    return Try("operations", count=done)


def operation(random: Random) -> tuple[str, dict[str, Any]]:
    """A rule of the model, and what it is given."""
    name = random.choices(list(CHOICES), [weight for weight, _ in CHOICES.values()])[0]
    return name, CHOICES[name][1](random)


def path(random: Random) -> str:
    """One of 62 paths."""
    return f"/{random.choice('ab')}/{random.randint(0, 30)}"


CHOICES: dict[str, tuple[float, Callable[[Random], dict[str, Any]]]] = {
    "upsert": (6, lambda r: {"items": list({path(r): r.randint(0, 60) for _ in range(r.randint(1, 8))}.items())}),
    "remove": (3, lambda r: {"paths": [path(r) for _ in range(r.randint(0, 5))]}),
    "move": (3, lambda r: {"path": path(r), "place": path(r)}),
    "fail": (2, lambda r: {"path": path(r), "reason": r.choice(["", "broken", "\udce9", "ü\n"])}),
    "rewhiten": (0.3, lambda r: {"dim": r.randint(1, 6)}),
    "unwhiten": (0.3, lambda r: {}),
    "save": (1, lambda r: {}),
    "reopen": (0.3, lambda r: {}),
    "search": (1.2, lambda r: {"seed": r.randint(0, 60), "k": r.randint(1, 70), "folder": r.choice([None, "/a", "/b", "/c"])}),
}  # fmt: skip


def refuse_what_is_no_vector(state: Any, random: Random) -> None:
    """Now and then a vector that can be no descriptor; the index must refuse it and stay as it was."""
    if random.random() < 0.02:
        wrong = random.choice([[math.nan] * 6, [math.inf] * 6, [0.0] * 6, [1.0] * 5])
        if not state.rows and len(wrong) == 5:
            return
        before = state.index.store.generation
        try:
            state.index.store.upsert([Row("/a/1", np.array(wrong, np.float32))])
        except StoreError:
            assert state.index.store.generation == before, "a refused vector changed the index"
        else:
            raise AssertionError(f"a vector {wrong} was taken")


def recipe_comes_back(random: Random) -> None:
    """A recipe with any of its fields changed is the same after a trip through JSON and through a whitening."""
    recipe = changed(random.choice(list(RECIPES.values())), random)
    again = Recipe.from_dict(json.loads(json.dumps(recipe.to_dict())))
    assert again == recipe and again.key() == recipe.key(), f"{recipe} came back as {again}"
    if not recipe.regional:
        learned = Whitening(np.zeros(3), np.eye(3), np.ones(3), 9, True, recipe, "x")
        assert Whitening.from_bytes(learned.to_bytes()).recipe == recipe


def changed(recipe: Recipe, random: Random) -> Recipe:
    """Some fields made another number, deep inside; what the recipe itself refuses is left."""
    for _ in range(random.randint(0, 4)):
        try:
            recipe = _another(recipe, random)
        except (RecipeError, ValueError, TypeError):
            continue
    return recipe


def _another(part: Any, random: Random) -> Any:
    field = random.choice(fields(part))
    value = getattr(part, field.name)
    if is_dataclass(value):
        return replace(part, **{field.name: _another(value, random)})
    if isinstance(value, bool):
        return replace(part, **{field.name: not value})
    if isinstance(value, int | float):
        return replace(
            part, **{field.name: type(value)(random.choice([1, 2, 3, 7, value * 2, value / 2, random.random()]))}
        )
    return replace(
        part, **{field.name: random.choice(["", "none", "max", "sum", "response", "uniform", "x y", "é", value])}
    )


def old_indexes(lane: Lane) -> Iterator[Try]:
    """Every index that an older version wrote opens, verifies, searches and takes new pictures."""
    import shutil

    from crow.search.care import verify

    for folder in sorted(OLD.glob("*.crow")):
        target = lane.fresh("old") / folder.name
        shutil.copytree(folder, target)

        def look(target: Path = target) -> None:
            expected = json.loads((target / "expected.json").read_text())
            with Index.open(target) as index:
                assert verify(index) == [], f"verify: {verify(index)}"
                found = [[hit.path, hit.score] for hit in index.search(np.array(expected["query"], np.float32), k=5)]
                assert [p for p, _ in found] == [p for p, _ in expected["hits"]]
                np.testing.assert_allclose([s for _, s in found], [s for _, s in expected["hits"]], atol=2e-3)
                new = np.array(expected["query"], np.float32)
                index.store.upsert([Row("/new.jpg", new / np.linalg.norm(new))])
                assert index.search("/new.jpg", k=1)[0].path == "/new.jpg" and verify(index) == []

        yield Try("old indexes", _agreed(look), count=0)


def _agreed(check: Callable[[], None]) -> str:
    try:
        check()
    except Exception as error:
        return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
    return ""


def _rules() -> Any:
    """The machine of tests/search/test_model.py, whose rules are called here without Hypothesis."""
    place = Path(__file__).parents[1] / "search" / "test_model.py"
    spec = importlib.util.spec_from_file_location("test_model", place)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.Model
