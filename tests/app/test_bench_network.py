"""The measurements of extraction: what they count and how they read, not how fast anything is."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

from crow.app.bench import SUBJECTS, Measure, operations
from crow.app.bench_pipeline import decode, pipeline
from crow.app.cli import app
from crow.app.cli_bench import line
from crow.extract.networks import vgg
from crow.recipe import RECIPES


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three small pictures."""
    for i in range(3):
        Image.fromarray(np.full((90, 120, 3), 80 * i, np.uint8)).save(tmp_path / f"{i}.jpg")
    return tmp_path


def test_operations_are_those_of_the_layers() -> None:
    body = vgg("conv2_1", (2, 2, 3, 3, 3))
    expected = 2 * 9 * 48 * 64 * (3 * 64 + 64 * 64) + 2 * 9 * 24 * 32 * 64 * 128
    with torch.no_grad():
        assert operations(torch.nn.Sequential(Float(), body), 48, 64) == expected


class Float(torch.nn.Module):
    """Bytes to numbers."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.float()


def test_pipeline_times_every_stage_and_names_the_slowest(vgg16: Path, folder: Path) -> None:
    found = list(pipeline(folder, 3, RECIPES["crow"].sized("64"), engine="torch"))
    names = [measure.name for measure in found]
    assert names[:4] == [f"{stage}, alone" for stage in ("read", "decode", "decode and resize", "network and CroW")]
    assert names[4].startswith("the stage that limits: ")
    assert found[4].value == min(measure.value for measure in found[:4])
    assert names[5] == "3 photographs from disk to vectors"
    assert 0 < found[6].value <= 100


def test_decode_is_compared_to_pillow(folder: Path) -> None:
    first, *_ = decode(folder, 2)
    assert first.ratio == pytest.approx(first.value / first.rivals["Pillow: open, convert, thumbnail"])


def test_a_measure_reads_as_one_line() -> None:
    measure = Measure("speed", 2.0, "ms", 0.25, 3.5, {"theirs": 7.0}, "3.2 times the best rival", True)
    text = "speed: 2 ms (quartiles 0.25 apart); 3.50 times theirs 7; wanted 3.2 times the best rival: holds"
    assert line(measure) == text
    assert line(Measure("share", 12.5, "%")) == "share: 12.5 %"


def test_the_command_prints_records_with_their_machine(folder: Path) -> None:
    done = CliRunner().invoke(app, ["bench", "decode", "--pictures", str(folder), "--json"])
    assert done.exit_code == 0
    report = json.loads(done.stdout)
    assert report["machine"]["cores"] >= 1
    assert {"name", "value", "unit", "ratio", "rivals", "wanted", "holds"} <= set(report["measures"][0])


def test_the_command_says_what_it_can_measure() -> None:
    done = CliRunner().invoke(app, ["bench", "nothing"])
    assert done.exit_code == 2
    for subject in SUBJECTS:
        assert subject in done.output
    assert CliRunner().invoke(app, ["bench", "pipeline"]).exit_code == 2
