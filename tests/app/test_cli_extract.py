"""The extraction commands as a person types them: output, exit codes, files, one clear line for each bad input."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from crow.framework.reduce import Whitening


def crow(*arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the command line in a process of its own."""
    command = [sys.executable, "-m", "crow.app.cli", *map(str, arguments)]
    source = str(Path(__file__).parents[2] / "src")
    env = {**os.environ, "PYTHONPATH": source, "COLUMNS": "200", "NO_COLOR": "1", **environment}
    done = subprocess.run(command, capture_output=True, text=True, env=env, timeout=300)
    assert "Traceback" not in done.stderr + done.stdout
    return done


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twelve pictures of noise in three sizes, in two folders."""
    folder = tmp_path_factory.mktemp("pictures")
    rng = np.random.default_rng(0)
    for i in range(12):
        place = folder / ("a" if i % 2 else "b")
        place.mkdir(exist_ok=True)
        size = [(96, 72), (72, 96), (80, 80)][i % 3]
        coarse = rng.integers(0, 256, (6, 8, 3), dtype=np.uint8)
        Image.fromarray(coarse).resize(size, Image.Resampling.BICUBIC).save(place / f"{i:02}.png")
    return folder


@pytest.fixture(scope="module")
def described(vgg16: Path, folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The vectors of `folder`."""
    out = tmp_path_factory.mktemp("described") / "x.npz"
    done = crow("describe", folder, "-o", out)
    assert done.returncode == 0, done.stderr
    assert "12 pictures described, 0 failed" in done.stdout
    return out


def test_describe_twice_gives_identical_vectors_in_the_order_of_the_paths(described: Path, folder: Path) -> None:
    again = described.with_name("y.npz")
    assert crow("describe", folder, "-o", again).returncode == 0
    first, second = (np.load(file) for file in (described, again))
    assert first["vectors"].tobytes() == second["vectors"].tobytes()
    assert list(first["paths"]) == sorted(str(p) for p in folder.rglob("*.png"))
    assert first["vectors"].shape == (12, 512)
    assert first["vectors"].dtype == np.float32


def test_describe_names_the_bad_and_goes_on(vgg16: Path, folder: Path, tmp_path: Path) -> None:
    (tmp_path / "text.jpg").write_text("hello")
    (tmp_path / "empty.png").touch()
    done = crow("describe", tmp_path, tmp_path / "gone.jpg", folder / "a", "-o", tmp_path / "x.npz", "--json")
    assert done.returncode == 3
    report = json.loads(done.stdout)
    reasons = {Path(f["path"]).name: f["reason"] for f in report["failed"]}
    assert report["described"] == 6 == len(np.load(tmp_path / "x.npz")["paths"])
    assert reasons.keys() == {"text.jpg", "empty.png", "gone.jpg"}
    assert "not a picture" in reasons["text.jpg"]
    assert "empty" in reasons["empty.png"]


def test_exit_codes_of_nothing_done_and_wrong_usage(vgg16: Path, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    nothing = crow("describe", tmp_path / "folder", "-o", tmp_path / "x.npz")
    assert nothing.returncode == 1
    assert not (tmp_path / "x.npz").exists()
    wrong = crow("describe", tmp_path / "folder", "-o", tmp_path / "x.npz", "--recipe", "croww")
    assert wrong.returncode == 2
    assert "ucrow" in wrong.stderr
    assert crow("describe", "--size", "huge", tmp_path, "-o", "x").returncode == 2
    assert crow("nonsense").returncode == 2
    nowhere = crow("describe", tmp_path, "-o", tmp_path / "gone" / "x.npz")
    assert nowhere.returncode == 2
    assert "its folder is not there" in nowhere.stderr


def test_whiten_from_a_folder_and_from_vectors(described: Path, folder: Path, tmp_path: Path) -> None:
    assert crow("whiten", folder, tmp_path / "a.safetensors", "--dim", 5).returncode == 0
    assert crow("whiten", described, tmp_path / "b.safetensors", "--dim", 5).returncode == 0
    first, second = (Whitening.load(tmp_path / name) for name in ("a.safetensors", "b.safetensors"))
    assert first.dim == second.dim == 5
    assert first.recipe == second.recipe
    assert np.allclose(first.projection, second.projection)
    assert crow("index", folder, tmp_path / "i.crow").returncode == 0
    assert crow("whiten", tmp_path / "i.crow", tmp_path / "d.safetensors", "--dim", 5).returncode == 0
    third = Whitening.load(tmp_path / "d.safetensors")
    assert third.recipe == first.recipe
    assert np.allclose(third.projection, first.projection)
    too_many = crow("whiten", described, tmp_path / "c.safetensors", "--dim", 300)
    assert too_many.returncode == 1
    assert "rank 11" in too_many.stderr


def test_rmac_regional_from_the_command_line(vgg16: Path, folder: Path, tmp_path: Path) -> None:
    regions = tmp_path / "regions.safetensors"
    assert crow("whiten", folder, regions, "--of-regions", "--dim", 32).returncode == 0
    done = crow("describe", folder / "a", "-o", tmp_path / "x.npz", "--recipe", "rmac-regional", "--regional", regions)
    assert done.returncode == 0, done.stderr
    assert np.load(tmp_path / "x.npz")["vectors"].shape == (6, 32)


def test_show_draws_one_picture_and_the_match_of_two(vgg16: Path, folder: Path, tmp_path: Path) -> None:
    one, two = sorted((folder / "a").iterdir())[:2]
    assert crow("show", one, tmp_path / "one.png").returncode == 0
    assert crow("show", one, two, tmp_path / "two.png").returncode == 0
    for name in ("one.png", "two.png"):
        with Image.open(tmp_path / name) as drawn:
            assert min(drawn.size) > 200
    done = crow("show", tmp_path / "gone.jpg", tmp_path / "x.png")
    assert done.returncode == 1
    assert "gone.jpg: no such file" in done.stderr
    done = crow("show", one, tmp_path / "x.foo")
    assert done.returncode == 2 and "a drawing is a file ending in .png" in done.stderr


def test_weights_without_a_network_says_what_to_do(tmp_path: Path) -> None:
    nowhere = {"PIP_INDEX_URL": "http://127.0.0.1:9/simple", "PIP_EXTRA_INDEX_URL": "", "PIP_FIND_LINKS": ""}
    done = crow("weights", CROW_CACHE=str(tmp_path), PIP_RETRIES="0", PIP_CONFIG_FILE=os.devnull, **nowhere)
    assert done.returncode == 1
    assert "crow weights vgg16 --from FILE" in done.stderr


def test_help_names_every_command() -> None:
    done = crow("--help")
    assert done.returncode == 0
    for name in ("weights", "describe", "whiten", "show"):
        assert name in done.stdout
