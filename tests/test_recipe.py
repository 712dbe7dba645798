"""A Recipe is data: it survives being written down, and its key changes with everything that changes a vector."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from dataclasses import FrozenInstanceError, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from crow.framework.normalize import NORMS
from crow.framework.pool import POOLS
from crow.framework.weight import CHANNEL, SPATIAL
from crow.recipe import (
    LAYERS,
    MAX2,
    RECIPES,
    Channel,
    Norm,
    Pool,
    Recipe,
    RecipeError,
    Size,
    Spatial,
    View,
    recipe_named,
)

whole = st.integers(1, 10_000)
positive = st.floats(1e-9, 1e9)
norms = st.builds(Norm, kind=st.sampled_from(list(NORMS)), power=positive)
recipes = st.builds(
    Recipe,
    name=st.text() | st.sampled_from(["inf", "Infinity", "NaN"]),
    pool=st.builds(
        Pool,
        kind=st.sampled_from(list(POOLS)),
        size=whole | st.tuples(whole, whole),
        stride=whole,
        ceil=st.booleans(),
        p=positive,
        levels=whole,
    ),
    spatial=st.builds(
        Spatial, kind=st.sampled_from(list(SPATIAL)), a=positive | st.just(math.inf), b=positive, sigma=positive
    ),
    channel=st.builds(Channel, kind=st.sampled_from(list(CHANNEL)), eps=positive),
    norm=norms,
    final=norms,
    view=st.builds(
        View,
        network=st.text() | st.just("inf"),
        layer=st.text(),
        size=st.builds(Size) | st.builds(Size, rule=st.sampled_from(["largest", "square"]), pixels=whole),
        upright=st.booleans(),
    ),
    regional=st.text(),
)

# one other value for every field there is: a field without a line here fails the tests below
OTHERS: dict[str, Any] = {
    "name": "another",
    "pool.kind": "sum",
    "pool.size": (3, 2),
    "pool.stride": 1,
    "pool.ceil": True,
    "pool.p": 2.5,
    "pool.levels": 4,
    "spatial.kind": "centre",
    "spatial.a": math.inf,
    "spatial.b": 1.0,
    "spatial.sigma": 0.25,
    "channel.kind": "sparsity-released",
    "channel.eps": 1e-7,
    "norm.kind": "l1",
    "norm.power": 0.5,
    "final.kind": "none",
    "final.power": 0.5,
    "view.network": "vgg19",
    "view.layer": "conv4_3",
    "view.size": Size("square", 586),
    "view.upright": False,
    "regional": "0123456789abcdef",
}


def with_field(recipe: Recipe, field: str, value: Any) -> Recipe:
    head, _, tail = field.partition(".")
    return replace(recipe, **{head: replace(getattr(recipe, head), **{tail: value}) if tail else value})


def leaves(plain: dict[str, Any], prefix: str = "") -> list[str]:
    found: list[str] = []
    for key, value in plain.items():
        found += leaves(value, f"{prefix}{key}.") if isinstance(value, dict) else [prefix + key]
    return found


def test_every_field_has_another_value_here() -> None:
    fields = {"view.size" if f.startswith("view.size.") else f for f in leaves(RECIPES["crow"].to_dict())}
    assert fields == set(OTHERS)


@pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES.keys())
def test_round_trip_of_every_published_recipe(recipe: Recipe) -> None:
    again = Recipe.from_dict(json.loads(json.dumps(recipe.to_dict(), allow_nan=False)))
    assert again == recipe and again.key() == recipe.key() and hash(again) == hash(recipe)


@given(recipes)
def test_round_trip_of_any_recipe(recipe: Recipe) -> None:
    again = Recipe.from_dict(json.loads(json.dumps(recipe.to_dict(), allow_nan=False)))
    assert again == recipe
    assert again.key() == recipe.key()
    assert recipe.differences(again) == []


@given(recipes, recipes)
def test_equal_keys_are_equal_recipes_but_for_the_name(one: Recipe, other: Recipe) -> None:
    same = replace(one, name="") == replace(other, name="")
    assert (one.key() == other.key()) == same == (one.differences(other) == [])


@pytest.mark.parametrize("field", OTHERS)
def test_the_key_feels_every_field_but_the_name(field: str) -> None:
    recipe = RECIPES["crow"]
    other = with_field(recipe, field, OTHERS[field])
    assert (other.key() == recipe.key()) == (field == "name")
    differences = recipe.differences(other)
    assert bool(differences) == (field != "name")
    assert all(d.startswith(field) for d in differences)
    assert Recipe.from_dict(json.loads(json.dumps(other.to_dict()))) == other


def test_the_published_recipes_have_keys_of_their_own() -> None:
    assert len({recipe.key() for recipe in RECIPES.values()}) == len(RECIPES)
    assert all(name == recipe.name for name, recipe in RECIPES.items())


def test_the_key_is_the_same_in_another_process() -> None:
    code = "from crow.recipe import RECIPES; print(*[r.key() for r in RECIPES.values()])"
    path = ":".join(p for p in sys.path if p)
    runs = [
        subprocess.run(
            [sys.executable, "-c", code],
            env={"PYTHONPATH": path, "PYTHONHASHSEED": seed},
            check=True,
            capture_output=True,
            text=True,
        ).stdout.split()
        for seed in ("1", "2")
    ]
    assert runs[0] == runs[1] == [recipe.key() for recipe in RECIPES.values()]


def test_numbers_are_equal_however_they_were_written() -> None:
    written = [
        Recipe("x", Pool("max", size=2), Spatial("response", a=2, b=2)),
        Recipe("x", Pool("max", size=(2, 2)), Spatial("response", a=2.0, b=2.0)),
        Recipe("x", Pool("max", size=np.int64(2)), Spatial("response", a=np.float32(2), b=np.float64(2))),
        Recipe("x", Pool("max", size=[2, 2]), Spatial("response")),  # type: ignore[arg-type]
    ]
    assert len(set(written)) == 1
    assert len({recipe.key() for recipe in written}) == 1


@pytest.mark.parametrize(
    ("part", "field", "value"),
    [
        (Pool, "size", 0),
        (Pool, "size", (2, 0)),
        (Pool, "size", (1, 2, 3)),
        (Pool, "size", 2.5),
        (Pool, "stride", 0),
        (Pool, "stride", True),
        (Pool, "stride", (2, 2)),
        (Pool, "levels", -1),
        (Pool, "p", 0.0),
        (Pool, "p", math.inf),
        (Pool, "ceil", 1),
        (Pool, "kind", 3),
        (Spatial, "a", 0),
        (Spatial, "a", -1.0),
        (Spatial, "a", math.nan),
        (Spatial, "a", "2"),
        (Spatial, "b", 0.0),
        (Channel, "eps", 0.0),
        (Norm, "power", 0.0),
        (View, "size", "640"),
        (View, "upright", "no"),
    ],
)
def test_values_that_make_no_sense_are_refused_by_name(part: type, field: str, value: Any) -> None:
    with pytest.raises(RecipeError, match=f"is no value for the recipe field '{field}' of {part.__name__}"):
        part(**{field: value})


def test_a_recipe_cannot_be_changed() -> None:
    with pytest.raises(FrozenInstanceError):
        RECIPES["crow"].spatial.a = 1.0  # type: ignore[misc]


# --- set, at, sized


@pytest.mark.parametrize("field", OTHERS)
def test_set_reaches_every_field(field: str) -> None:
    value = OTHERS[field]
    text = "x".join(map(str, value)) if isinstance(value, tuple) else str(value)
    assert RECIPES["crow"].set(f"{field}={text}") == with_field(RECIPES["crow"], field, value)


def test_set_takes_short_names_and_several() -> None:
    recipe = RECIPES["crow"].set("a=1", " b = 4 ", "stride=1", "ceil=true", "view.size=original", "view.upright=0")
    assert recipe.spatial == Spatial("response", a=1, b=4)
    assert recipe.pool == Pool("max", stride=1, ceil=True)
    assert recipe.view == View(size=Size(), upright=False)
    assert recipe.set("pool.size=3x2").set("pool.size=5").pool.size == 5
    assert RECIPES["crow"].set() == RECIPES["crow"] == RECIPES["crow"].set("a=2")


@pytest.mark.parametrize(
    ("assignment", "message"),
    [
        ("a", "'a' is not of the form field=value"),
        ("alpha=1", "no recipe field named 'alpha'; there are: name, pool.kind, pool.size"),
        ("kind=max", "more than one recipe field named 'kind'; there are: .*spatial.kind"),
        ("power=2", "more than one recipe field named 'power'"),
        ("a=two", "'two' is no value for the recipe field 'a'"),
        ("a=-2", "-2.0 is no value for the recipe field 'a'"),
        ("a=nan", "nan is no value for the recipe field 'a'"),
        ("stride=2x2", "is no value for the recipe field 'stride'"),
        ("pool.size=2x", "'2x' is no value for the recipe field 'size'"),
        ("ceil=perhaps", "'perhaps' is no value for the recipe field 'ceil'"),
        ("view.size=big", "a size is 'original'"),
    ],
)
def test_set_says_what_is_wrong(assignment: str, message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        RECIPES["crow"].set(assignment)


@pytest.mark.parametrize(
    ("layer", "cut", "pool"),
    [
        ("conv4_3", "conv4_3", Pool("none")),
        ("pool4", "conv4_3", MAX2),
        ("conv5_3", "conv5_3", Pool("none")),
        ("pool5", "conv5_3", MAX2),
    ],
)
def test_at_one_of_the_papers_layers(layer: str, cut: str, pool: Pool) -> None:
    moved = RECIPES["ucrow+sw"].at(layer)
    assert moved == replace(RECIPES["ucrow+sw"], pool=pool, view=View(layer=cut))


def test_at_the_layer_where_a_recipe_already_is() -> None:
    assert RECIPES["crow"].at("pool5") == RECIPES["crow"]
    assert RECIPES["crow"].at("conv5_3").key() == RECIPES["crow-conv5"].key()
    assert RECIPES["spoc"].at("conv5_3") == RECIPES["spoc"]


@pytest.mark.parametrize("name", ["mac", "gem", "rmac", "rmac-regional"])
def test_at_keeps_a_pooling_that_is_the_method_itself(name: str) -> None:
    recipe = RECIPES[name]
    assert recipe.at("conv5_3") == recipe
    assert recipe.at("conv4_3") == replace(recipe, view=View(layer="conv4_3"))
    with pytest.raises(RecipeError, match=f"{name} has a pooling of its own and goes on conv5_3, not on pool5"):
        recipe.at("pool5")


def test_sized() -> None:
    assert RECIPES["crow"].sized("586x586").view.size == Size("square", 586)
    assert RECIPES["crow"].sized(Size()).view == View(size=Size())


# --- Size


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("original", Size()),
        (" Original ", Size()),
        ("512", Size("largest", 512)),
        ("586x586", Size("square", 586)),
        ("586X586", Size("square", 586)),
    ],
)
def test_size_parse(text: str, size: Size) -> None:
    assert Size.parse(text) == size
    assert Size.parse(str(size)) == size


@pytest.mark.parametrize("text", ["", "0", "-3", "0x0", "640x480", "x", "12x", "large", "1e3", "5.5", "586x586x586"])
def test_size_parse_refuses(text: str) -> None:
    with pytest.raises(RecipeError, match="a size is 'original', a longest side such as 512, or a square"):
        Size.parse(text)


@given(st.text(max_size=8))
def test_size_parse_never_breaks(text: str) -> None:
    try:
        size = Size.parse(text)
    except RecipeError:
        return
    assert Size.parse(str(size)) == size


@pytest.mark.parametrize(
    ("rule", "pixels"), [("original", 5), ("largest", 0), ("square", -1), ("largest", True), ("square", 2.0)]
)
def test_size_is_never_half_made(rule: str, pixels: Any) -> None:
    with pytest.raises(RecipeError, match="does not go with"):
        Size(rule, pixels)


def test_an_unknown_size_rule_lists_the_known_ones() -> None:
    with pytest.raises(RecipeError, match="no size rule named 'shortest'; there are: original, largest, square"):
        Size("shortest", 5)


# --- names and dicts that are not ours


def test_unknown_names_list_the_known_ones() -> None:
    with pytest.raises(RecipeError, match="no recipe named 'crowd'; there are: crow, ucrow, ") as error:
        recipe_named("crowd")
    assert all(name in str(error.value) for name in RECIPES)
    with pytest.raises(RecipeError, match="no layer named 'fc7'; there are: " + ", ".join(LAYERS)):
        RECIPES["crow"].at("fc7")
    assert recipe_named("gem") is RECIPES["gem"]


def test_from_dict_is_strict() -> None:
    good = RECIPES["crow"].to_dict()
    spatial = good["spatial"]
    for bad in (
        {},
        {**good, "colour": 1},
        {k: v for k, v in good.items() if k != "name"},
        {**good, "spatial": "response"},
        {**good, "spatial": {**spatial, "c": 1}},
        {**good, "view": None},
        [good],
    ):
        with pytest.raises(RecipeError, match=r"this is not a recipe of this version: .* has the fields"):
            Recipe.from_dict(bad)  # type: ignore[arg-type]
    for bad in ({**good, "spatial": {**spatial, "a": "two"}}, {**good, "name": 3}):
        with pytest.raises(RecipeError, match="is no value for the recipe field"):
            Recipe.from_dict(bad)


def test_what_was_written_before_a_field_existed_still_opens() -> None:
    older = RECIPES["crow"].to_dict()
    del older["regional"], older["pool"]["levels"]
    assert Recipe.from_dict(older) == RECIPES["crow"]
    assert Recipe.from_dict(older).key() == RECIPES["crow"].key()


@given(recipes, recipes)
def test_differences_name_the_fields(one: Recipe, other: Recipe) -> None:
    mine, theirs = json.loads(json.dumps(one.to_dict())), json.loads(json.dumps(other.to_dict()))
    found = {d.split(":")[0] for d in one.differences(other)}
    for field in leaves(mine):
        a, b = mine, theirs
        for part in field.split("."):
            a, b = a[part], b[part]
        assert (field in found) == (a != b and field != "name")
    assert {d.split(":")[0] for d in other.differences(one)} == found


def test_differences_read_well() -> None:
    assert RECIPES["crow"].differences(RECIPES["ucrow+sw"]) == ["channel.kind: sparsity / uniform"]
