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
