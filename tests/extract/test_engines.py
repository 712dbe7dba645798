"""Every engine against the reference: vectors, order, determinism, the cache of compiled models, and doing without."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import crow
from crow.extract import engines
from crow.extract.cores import granted_cores
from crow.extract.engines import ENGINES, EngineError, choose, engine_named, int8
from crow.extract.engines.cuda import usable
from crow.extract.engines.rewrite import balanced, whole_numbers
from crow.extract.networks import load
from crow.framework.describe import describe
from crow.recipe import RECIPES, View

CPU = sorted(name for name in ENGINES if name.startswith("openvino"))
HOPPER = pytest.mark.skipif(not usable(), reason="no Hopper GPU (H100, H200) here")
GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")
ALL = [*CPU, *(pytest.param(n, marks=HOPPER) for n in ("cuda", "cuda-fp8")), pytest.param("torch-bf16", marks=GPU)]
LEAST = {"exact": 0.9995, "fast": 0.995}  # cosine to the reference, by precision class
Pictures = list[np.ndarray[Any, np.dtype[np.uint8]]]


@pytest.fixture(scope="module")
def pictures(photos: Path) -> Pictures:
    """Real photographs, sizes mixed, among them one of odd sides and the smallest."""
    sizes = [(160, 120), (120, 160), (213, 97), (160, 120), (64, 64), (120, 160)]
    found = []
    for file, size in zip(sorted(photos.rglob("*.jpg"))[::19], sizes, strict=False):
        with Image.open(file) as image:
            found.append(np.asarray(image.convert("RGB").resize(size)))
    return found


@pytest.fixture(scope="module")
def network(vgg16: Path) -> torch.nn.Module:
    """The real VGG16."""
    return load("vgg16", "conv5_3")[0]


@pytest.fixture(scope="module")
def made(network: torch.nn.Module) -> Callable[[str], engines.Engine]:
    """Engines by name, each made once."""
    kept: dict[str, engines.Engine] = {}

    def make(name: str) -> engines.Engine:
        if name in CPU:
            pytest.importorskip("openvino")
        if name not in kept:
            kept[name] = engine_named(name, network, "cpu" if name in (*CPU, "torch") else None)
        return kept[name]

    return make


@pytest.fixture(scope="module")
def reference(network: torch.nn.Module, pictures: Pictures) -> list[torch.Tensor]:
    """The maps of the reference."""
    return list(engine_named("torch", network, "cpu").maps(pictures))


@pytest.mark.parametrize("name", ALL)
def test_maps_and_vectors_equal_the_references_in_the_order_given(
    made: Any, pictures: Pictures, reference: list[torch.Tensor], name: str
) -> None:
    engine = made(name)
    maps = list(engine.maps(pictures))
    assert [x.shape for x in maps] == [x.shape for x in reference]
    assert torch.equal(maps[3], next(engine.maps(pictures[3:4])))  # later pictures did not write over it
    for recipe in (RECIPES[name] for name in ("crow", "ucrow", "spoc", "gem", "rmac")):
        ours = np.concatenate([describe(x, recipe).cpu().numpy() for x in maps])
        theirs = np.concatenate([describe(x, recipe).numpy() for x in reference])
        assert (ours * theirs).sum(1).min() >= LEAST[engine.precision]
        assert (engine.vectors(pictures, recipe) * theirs).sum(1).min() >= LEAST[engine.precision]
    assert engine.vectors(pictures, recipe).tobytes() == ours.tobytes()


@pytest.mark.parametrize("name", ALL)
def test_a_picture_gives_the_same_bytes_whatever_went_before_and_beside_it(
    made: Any, pictures: Pictures, network: torch.nn.Module, name: str
) -> None:
    crow = RECIPES["crow"]
    together = made(name).vectors(pictures, crow)
    backwards = made(name).vectors(pictures[::-1], crow)[::-1]
    fresh = engine_named(name, network, made(name).device).vectors(pictures[4:5], crow)
    assert together.tobytes() == backwards.tobytes()
    assert together[4:5].tobytes() == fresh.tobytes()


@pytest.mark.parametrize("name", CPU)
def test_compiled_models_are_kept_and_a_damaged_one_is_made_anew(
    vgg16: Path, pictures: Pictures, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    pytest.importorskip("openvino")
    network = load("vgg16", "conv2_2")[0]
    monkeypatch.setenv("CROW_CACHE", str(tmp_path))
    first = engine_named(name, network).vectors(pictures[:2], RECIPES["crow"])
    (kept,) = (tmp_path / "openvino").iterdir()
    size, made_at = kept.stat().st_size, kept.stat().st_mtime_ns
    again = engine_named(name, network).vectors(pictures[:2], RECIPES["crow"])
    assert again.tobytes() == first.tobytes()
    assert kept.stat().st_mtime_ns == made_at
    whole = kept.read_bytes()
    for damaged in (b"", whole[: size // 2], whole[:-9] + b"?" + whole[-8:]):
        kept.write_bytes(damaged)
        again = engine_named(name, network).vectors(pictures[:2], RECIPES["crow"])
        assert again.tobytes() == first.tobytes()
        assert kept.stat().st_size > 0.9 * size


def test_other_weights_and_other_layers_are_other_models(vgg16: Path, tmp_path: Path, monkeypatch: Any) -> None:
    pytest.importorskip("openvino")
    one, other, shorter = (load("vgg16", layer)[0] for layer in ("conv1_2", "conv1_2", "conv1_1"))
    for weight in other.parameters():
        weight.data *= 2
    monkeypatch.setenv("CROW_CACHE", str(tmp_path))
    picture = np.full((64, 64, 3), 200, np.uint8)
    sums = {float(next(engine_named("openvino", network).maps([picture])).sum()) for network in (one, other, shorter)}
    assert len(sums) == 3
    assert len(list((tmp_path / "openvino").iterdir())) == 3


def test_without_openvino_torch_is_chosen_and_said(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "openvino", None)
    with caplog.at_level(logging.WARNING):
        assert choose(View(), "cpu") == "torch"
    assert "OpenVINO cannot be loaded" in caplog.text
    assert "crow-search[cpu]" in caplog.text
    with pytest.raises(EngineError, match=r"crow-search\[cpu\]"):
        engine_named("openvino", torch.nn.Identity(), "cpu")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_on_a_hopper_gpu_without_its_libraries_torch_is_chosen_and_said(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: (9, 0))
    with caplog.at_level(logging.WARNING):
        assert choose(View()) == "torch-bf16"  # here, the driver is what is missing
    assert "no CUDA driver can be loaded" in caplog.text and "several times slower" in caplog.text
    assert choose(View(layer="conv1_1")) == choose(View(network="alexnet", layer="conv5")) == "torch-bf16"
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: (7, 5))
    assert choose(View()) == "torch"  # without bfloat16


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
@pytest.mark.parametrize("name", ["cuda", "cuda-fp8", "torch-bf16"])
def test_gpu_engines_are_refused_in_a_line_where_there_is_no_gpu(name: str) -> None:
    for device in (None, "cpu", "cuda", "cuda:3"):
        with pytest.raises(EngineError, match=f"engine {name} needs a .*GPU.*; engine torch runs anywhere"):
            engine_named(name, torch.nn.Identity(), device)
    with pytest.raises(EngineError, match="device 'cuda' cannot be used"):
        engine_named("torch", torch.nn.Linear(1, 1), "cuda")


def test_with_openvino_it_is_the_default_on_a_cpu() -> None:
    pytest.importorskip("openvino")
    assert choose(View(), "cpu") == "openvino"
    assert torch.cuda.is_available() or choose(View(), "cuda") == "torch"


def test_openvino_is_loaded_without_its_telemetry() -> None:
    pytest.importorskip("openvino")
    program = """
import sys
from crow.extract.engines.graph import openvino_quietly
openvino_quietly()
sys.exit(any(name.startswith("openvino_telemetry") for name in sys.modules))
"""
    here = {**os.environ, "PYTHONPATH": str(Path(crow.__file__).parents[1])}
    assert subprocess.run([sys.executable, "-c", program], env=here, check=False).returncode == 0


def test_wrong_names_and_devices_are_refused() -> None:
    with pytest.raises(EngineError, match="there are: torch, torch-bf16, cuda"):
        engine_named("fpga", torch.nn.Identity())
    pytest.importorskip("openvino")
    with pytest.raises(EngineError, match="not on device 'cuda'"):
        engine_named("openvino", torch.nn.Identity(), "cuda")


def test_cores_follow_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert granted_cores(tmp_path) == 1


def test_cores_follow_the_quota_of_a_container(tmp_path: Path) -> None:
    unlimited = granted_cores(tmp_path)
    assert unlimited >= 1
    (tmp_path / "cpu.max").write_text("150000 100000\n")
    assert granted_cores(tmp_path) == min(2, unlimited)
    (tmp_path / "cpu.max").write_text("20000 100000\n")
    assert granted_cores(tmp_path) == 1
    (tmp_path / "cpu.max").write_text("max 100000\n")
    assert granted_cores(tmp_path) == unlimited
    (tmp_path / "cpu.max").unlink()
    (tmp_path / "cpu").mkdir()
    (tmp_path / "cpu" / "cpu.cfs_quota_us").write_text("100000")
    (tmp_path / "cpu" / "cpu.cfs_period_us").write_text("100000")
    assert granted_cores(tmp_path) == 1


def test_eight_bits_are_for_the_weights_they_were_measured_on(network: torch.nn.Module) -> None:
    pytest.importorskip("openvino")
    foreign = load("vgg16", "conv1_2")[0]
    for weight in foreign.parameters():
        weight.data *= 2
    for refused in (foreign, torch.nn.Identity()):
        with pytest.raises(EngineError, match="take engine openvino"):
            engine_named("openvino-int8", refused, "cpu")
    table = json.loads(Path(int8.__file__).with_name(int8.TABLE).read_text())
    assert len(int8.in_int8(network)[1].ends) == len(table["layers"]) - 1 == 12


def test_the_ranges_are_those_of_photographs(network: torch.nn.Module, pictures: Pictures) -> None:
    pytest.importorskip("openvino")
    found = int8.measure(network, pictures[:2])
    names = [name for name, _ in network.body.named_children()]
    largest: dict[str, Any] = dict.fromkeys(names, 0)
    with torch.no_grad():  # the same, by torch alone
        for picture in pictures[:2]:
            x = torch.from_numpy(picture.copy()).permute(2, 0, 1)[None].float()
            x = (x - network.mean) / network.std
            for name, part in network.body.named_children():
                x = part(x)
                largest[name] = np.maximum(largest[name], x.amax((0, 2, 3)).numpy())
    for name, layer in found.items():
        assert np.allclose(layer["largest"], largest[name.replace("conv", "relu")], rtol=1e-2, atol=1e-2)


def test_rewritten_networks_compute_the_same(network: torch.nn.Module, pictures: Pictures) -> None:
    x = torch.from_numpy(pictures[2].copy()).permute(2, 0, 1)[None]
    ranges = [torch.rand(part.out_channels) for part in network.modules() if isinstance(part, torch.nn.Conv2d)]
    with torch.no_grad():
        expected = network(x)
        for other in (whole_numbers(network), balanced(network, ranges)[0]):
            assert torch.allclose(other(x), expected, rtol=1e-3, atol=1e-3 * float(expected.max()))
    assert torch.equal(network(x), expected)  # the network itself was left alone


@pytest.mark.parametrize("name", ALL)
def test_dark_and_almost_blank_photographs_keep_their_texture(made: Any, pictures: Pictures, name: str) -> None:
    texture = pictures[0].astype(np.float32) / 255
    dark = [(35 + 4 * texture).astype(np.uint8), (3 + 9 * texture).astype(np.uint8)]
    reference = made("torch").vectors(dark, RECIPES["crow"])
    assert (made(name).vectors(dark, RECIPES["crow"]) * reference).sum(1).min() >= LEAST[made(name).precision]
