"""crow paper from the command line: what it refuses, and how it ends."""

from __future__ import annotations

import json
from pathlib import Path

from typer.testing import CliRunner

from crow.app.cli import app


def run(*words: str | Path):
    return CliRunner().invoke(app, ["paper", *map(str, words)])


def test_a_table_that_needs_no_pictures(tmp_path):
    done = run("--data", tmp_path, "--out", tmp_path / "report", "--only", "spocsup", "--json")
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    assert told["made"] == ["spocsup"] and told["skipped"] == {} and Path(told["page"]).is_file()


def test_what_is_not_there_is_named_and_nothing_is_made_up(tmp_path):
    done = run("--data", tmp_path, "--out", tmp_path / "report", "--only", "layers", "--only", "spocsup")
    assert done.exit_code == 3 and "skipped: layers: paris6k: none of its pictures there" in done.output
    done = run("--data", tmp_path, "--out", tmp_path / "report", "--only", "layers")
    assert done.exit_code == 1 and not list((tmp_path / "report").glob("layers*"))


def test_wrong_names_are_wrong_usage(tmp_path):
    done = run("--data", tmp_path, "--only", "table7")
    assert done.exit_code == 2 and "no table or figure named" in done.output
    done = run("--data", tmp_path, "--dataset", "paris")
    assert done.exit_code == 2 and "benchmarks, groups" in done.output
    done = run("--data", tmp_path, "--recipe", "crown")
    assert done.exit_code == 2 and "no recipe named" in done.output
