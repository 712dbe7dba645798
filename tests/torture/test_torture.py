"""A short sample of every campaign, as `make torture` runs it; and that each defect planted on purpose is caught."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import crow
from crow.extract.pretrained import cache_folder
from torture.campaigns import CAMPAIGNS
from torture.seeds import PHOTOS

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or not shutil.which("cc"), reason="needs Linux and a C compiler"
)
SECONDS = {"kill": 4, "kill-traced": 4, "damage": 4, "power": 4, "limits": 4, "bombs": 4, "pictures": 3, "guided": 4}
SECONDS |= {"model": 3, "determinism": 2, "soak": 2}
REAL = ("determinism", "soak")  # with the real network


def torture(*options: str, plant: str = "") -> tuple[int, str]:
    """A run of the real program: exit code and what it says."""
    path = os.pathsep.join([str(Path(__file__).parents[1]), str(Path(crow.__file__).parents[1])])
    done = subprocess.run(
        [sys.executable, "-m", "torture", *options],
        env=os.environ | {"PYTHONPATH": path, "CROW_PLANT": plant, "CROW_SAMPLE": "1"},
        capture_output=True,
        text=True,
    )
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize("name", SECONDS)
def test_a_sample_of_each_campaign_holds(name: str) -> None:
    if name in REAL and not (cache_folder() / "vgg16.safetensors").is_file():
        pytest.skip("no weights of vgg16 in the cache: run crow weights")
    if name == "determinism" and not PHOTOS.is_dir():
        pytest.skip(f"no photographs at {PHOTOS}")
    if name == "guided":
        pytest.importorskip("atheris")
    code, said = torture("--seconds", str(SECONDS[name]), "--only", name, "--seed", "3")
    print(said)
    assert re.search(rf"^{name} +tried +[1-9]", said, re.M), said
    assert code == 0, said


def test_what_is_used_is_licensed_hashed_and_harmless() -> None:
    code, said = torture("--seconds", "60", "--only", "supply")
    assert code == 0 and "held         5" in said, said


@pytest.mark.parametrize(
    ("plant", "campaign", "words"),
    [
        ("skipped-fsync", "power", "acknowledged"),
        ("swallowed-exception", "limits", "full disk"),
        ("nan", "model", "was taken"),
    ],
)
def test_a_planted_defect_is_caught_by_the_campaign_meant_for_it(plant: str, campaign: str, words: str) -> None:
    code, said = torture("--seconds", "20", "--only", campaign, "--seed", "1", plant=plant)
    assert code == 1 and "FAILED" in said and words in said, said
    assert said.splitlines()[-1] == f"failed, or tried nothing: {campaign}"


def test_unknown_names_are_refused() -> None:
    code, said = torture("--only", "nothing")
    assert code == 2 and all(name in said for name in CAMPAIGNS)
