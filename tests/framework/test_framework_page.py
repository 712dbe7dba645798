"""docs/framework.md says what the code does: its table, its lists and its programs."""

from __future__ import annotations

import re
from fractions import Fraction
from pathlib import Path

import pytest

from crow.framework.normalize import NORMS
from crow.framework.pool import POOLS
from crow.framework.weight import CHANNEL, SPATIAL
from crow.recipe import RECIPES, Norm, Recipe

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "framework.md").read_text("utf-8")


def in_words(recipe: Recipe) -> list[str]:
    """A recipe as the page's table writes it: the kind of each part, and the numbers that this kind uses."""
    pool, spatial = recipe.pool, recipe.spatial
    numbers = {
        "max": f" {pool.size}x{pool.size}, stride {pool.stride}",
        "power-mean": f", p = {pool.p:g}",
        "regions": f", L = {pool.levels}",
        "response": f", a = {spatial.a:g}, b = {spatial.b:g}",
        "centre": f", sigma = {Fraction(spatial.sigma).limit_denominator(100)}",
    }
    kinds = (pool.kind, spatial.kind, recipe.channel.kind)
    return [f"`{recipe.name}`", *(kind + numbers.get(kind, "") for kind in kinds)]


def test_the_table_is_that_of_the_recipes() -> None:
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in PAGE.splitlines() if line.startswith("| `")
    ]
    assert [row[:4] for row in rows] == [in_words(recipe) for recipe in RECIPES.values()]
    assert all(len(row) == 5 and row[4] for row in rows)
    assert all(recipe.norm == recipe.final == Norm("l2") for recipe in RECIPES.values())


@pytest.mark.parametrize(
    ("step", "table"), [("pool", POOLS), ("spatial weight", SPATIAL), ("channel weight", CHANNEL), ("norm", NORMS)]
)
def test_the_kinds_are_those_of_the_rooms(step: str, table: dict[str, object]) -> None:
    assert f"- {step}: {', '.join(f'`{kind}`' for kind in table)}\n" in PAGE


def test_the_files_are_there_and_hold_the_functions() -> None:
    rows = re.findall(r"^\| \d \| .*? \| `(\w+\.py)` \| `(\w+)`", PAGE, re.MULTILINE)
    assert len(rows) == 7
    for file, function in rows:
        text = (ROOT / "src" / "crow" / "framework" / file).read_text("utf-8")
        assert re.search(rf"^(def|class) {function}\b", text, re.MULTILINE)


def test_the_programs_run_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("crow.framework.weight.SPATIAL", dict(SPATIAL))
    names: dict[str, object] = {}
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    assert len(blocks) == 4
    for block in blocks:
        exec(block, names)
    assert "peak" not in SPATIAL
