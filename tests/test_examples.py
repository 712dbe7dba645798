"""Every example runs, as a program of its own; one that asks for arguments is skipped by what it asks for."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
from PIL import Image

from crow.recipe import RECIPES

ROOT = Path(__file__).parents[1]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


def usage(example: Path) -> str:
    """What follows the example's name on its docstring's line `python examples/NAME ARGUMENTS`."""
    told = ast.get_docstring(ast.parse(example.read_text("utf-8"))) or ""
    line = re.search(rf"^ *python examples/{re.escape(example.name)}(.*)$", told, re.MULTILINE)
    assert line, f"the docstring of {example.name} does not say how to run it"
    return line[1].strip()


@cache
def printed(example: Path) -> str:
    """What it prints, run from another folder, with nothing in the cache of weights and warnings as errors."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "CROW_CACHE": os.devnull}
    command = [sys.executable, "-W", "error", str(example)]
    done = subprocess.run(command, cwd=ROOT.parent, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert not done.stderr
    return done.stdout


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.name)
def test_example(example: Path) -> None:
    assert re.match(r"\d\d_\w+\.py", example.name), "examples are numbered in the order of reading"
    if asked := usage(example):
        pytest.skip(f"{example.name} asks for {asked}")
    assert printed(example).strip()


def test_training_through_describe_learns() -> None:
    losses = [float(loss) for loss in re.findall(r"loss ([\d.]+)", printed(ROOT / "examples" / "01_describe.py"))]
    assert len(losses) == 3 and losses[-1] < losses[0] / 2


def test_scenes_are_told_apart_by_every_recipe(vgg16: Path, tmp_path: Path) -> None:
    """Three scenes of flat colours in two lights, through the real network: the order of lines, and all of them."""
    colours = {"red": (220, 40, 40), "green": (30, 180, 60), "_distractors": (90, 90, 200)}
    for scene, colour in colours.items():
        (tmp_path / "photos" / scene).mkdir(parents=True)
        for light in (0.6, 1.0):
            pixels = tuple(int(c * light) for c in colour)
            Image.new("RGB", (96, 64 + int(16 * light)), pixels).save(tmp_path / "photos" / scene / f"{light}.png")
    (tmp_path / "cache").mkdir()
    for file in vgg16.parent.glob("vgg16.*"):
        (tmp_path / "cache" / file.name).symlink_to(file)
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "CROW_CACHE": str(tmp_path / "cache")}
    command = [sys.executable, str(ROOT / "examples" / "02_scenes.py"), str(tmp_path / "photos")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == "6 photographs, 4 of them queries"
    assert [line.split()[0] for line in lines[3:]] == [name for name in RECIPES if name != "rmac-regional"]
    assert all(0 <= float(line.split()[-1]) <= 100 for line in lines[1:])
