"""`crow eval` and `crow data` from end to end: every official layout, drawn, through the real network at 64 pixels."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from crow.app.cli import app

EXPECTED = {  # queries, pictures, crop
    "oxford5k": [(4, 15, "box")],
    "paris6k": [(3, 12, "box")],
    "holidays": [(3, 9, "none")],
    "roxford5k": [(1, 8, "box"), (2, 8, "box"), (2, 8, "box")],
    "rparis6k": [(1, 8, "box"), (2, 8, "box"), (2, 8, "box")],
    "groups": [(6, 9, "none")],
}


def crow(*words: object):
    """The command in this process."""
    return CliRunner().invoke(app, [str(word) for word in words])


def crow_alone(*words: object, **environment: str):
    """The command in a process of its own, as a user starts it."""
    command = [sys.executable, "-m", "crow.app.cli", *map(str, words)]
    paths = os.pathsep.join([str(Path(__file__).parents[2] / "src"), os.environ.get("PYTHONPATH", "")])
    return subprocess.run(
        command, capture_output=True, text=True, env=os.environ | {"PYTHONPATH": paths} | environment, check=False
    )


@pytest.mark.parametrize("name", EXPECTED)
def test_every_layout_end_to_end(lay, own_cache, name):
    words = ("eval", name, "--data", lay(name), "--size", 64, "--whiten", "none", "--json")
    run = crow(*words)
    assert run.exit_code == 0, run.output
    records = json.loads(run.stdout)
    assert [(r["queries"], r["images"], r["crop"]) for r in records] == EXPECTED[name]
    for record in records:
        assert record["dataset"] == name and record["recipe"] == "crow" and record["dim"] == 512
        assert record["whiten"] == "none" and record["expand"] == 0 and record["size"] == "64"
        assert 0.5 < record["ci_low"] <= record["map"] <= record["ci_high"] <= 1
    if name.startswith("r"):
        assert [record["setting"] for record in records] == ["easy", "medium", "hard"]
    assert crow(*words).stdout == run.stdout


def test_distractors_whitening_expansion_crop_and_report(lay, own_cache, tmp_path):
    lay("oxford100k"), lay("holidays"), lay("paris6k")
    page = tmp_path / "report.html"
    words = ("eval", "oxford5k", "--data", lay("oxford5k").parent, "--size", 64, "--distractors", "oxford100k")
    words += ("--whiten", "paris6k", "--dim", 6, "--dim", 3, "--recipe", "crow", "--recipe", "rmac-regional")
    run = crow(*words, "--expand", 2, "--crop", "released", "--html", page, "--json")
    assert run.exit_code == 3, run.output  # one of the distractors is damaged
    records = json.loads(run.stdout)
    assert [(r["recipe"], r["dim"]) for r in records] == [
        ("crow", 6),
        ("crow", 3),
        ("rmac-regional", 6),
        ("rmac-regional", 3),
    ]
    assert {(r["images"], r["distractors"], r["failed"], r["crop"]) for r in records} == {(21, 7, 1, "released")}
    assert any("oxc1_000009.jpg" in line for line in records[0]["amiss"])
    html = page.read_text()
    assert html.count("<details>") == 5 and "http" not in html.replace("http-equiv", "")
    assert html.count("class=strip") == 16 and "oxc1_000009.jpg" in html


def test_what_the_options_change_is_in_the_record(lay, own_cache):
    run = crow("eval", "groups", "--data", lay("groups"), "--size", 64, "--set", "a=1", "--dim", 2, "--pca", "--json")
    (record,) = json.loads(run.stdout)
    assert record["changed"] == ["spatial.a: 2.0 / 1.0"] and record["pca"] and record["whiten"] == "self"


def test_features_of_crow_describe_give_the_same_map(lay, own_cache, tmp_path):
    root, file = lay("groups"), tmp_path / "x.npz"
    assert crow("describe", root, "-o", file, "--size", 64).exit_code == 0
    ours = json.loads(crow("eval", "groups", "--data", root, "--size", 64, "--json").stdout)
    theirs = json.loads(crow("eval", "groups", "--data", root, "--features", file, "--json").stdout)
    assert theirs[0]["map"] == pytest.approx(ours[0]["map"], abs=1e-9)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("eval", "ukbench"), "no dataset named 'ukbench'"),
        (("eval", "groups", "--recipe", "vlad"), "no recipe named 'vlad'"),
        (("eval", "groups", "--dim", "8", "--whiten", "none"), "a dim needs something to learn the reduction on"),
        (("eval", "groups", "--crop", "half"), "no crop named 'half'"),
        (("eval", "groups", "--ranks", "x", "--dim", "8"), "--ranks are judged as they are"),
        (("eval", "groups", "--features", "x", "--recipe", "crow"), "--features are vectors already"),
        (("data", "ukbench"), "no archives of 'ukbench' are known"),
    ],
)
def test_wrong_usage_is_2(lay, words, message):
    where = ("--data", lay("groups")) if words[:2] == ("eval", "groups") else ()
    run = crow(*words, *where)
    assert run.exit_code == 2
    assert " ".join(message.split()) in " ".join(run.output.replace("│", " ").split())


def test_nothing_could_be_done_is_1_in_one_line(lay, tmp_path):
    run = crow_alone("eval", "oxford5k", "--data", tmp_path)
    assert run.returncode == 1
    assert run.stderr == "crow: oxford5k: none of its pictures there; `crow data oxford5k` says where to get them\n"
    skipped = crow("eval", "groups", "--data", lay("groups"), "--recipe", "rmac-regional")
    assert skipped.exit_code == 1 and "rmac-regional: needs pictures to learn the whitening" in skipped.stderr


def test_data_says_where_things_are(tmp_path):
    run = crow("data", "holidays", "--data", tmp_path, "--no-fetch")
    assert run.exit_code == 0 and "not here; to be had from ftp://ftp.inrialpes.fr" in run.stdout
    assert "oxc1_100k.part40.rar" in crow("data", "--data", tmp_path).stdout
    states = json.loads(crow("data", "holidays", "--data", tmp_path, "--json").stdout)  # ftp is never fetched
    assert len(states) == 2 and all("by hand" in state["failed"] for state in states)
    (tmp_path / "jpg1.tar.gz").write_text("<html>moved</html>")
    run = crow("data", "holidays", "--data", tmp_path)
    assert run.exit_code == 1 and "jpg1.tar.gz: a web page" in run.stderr
