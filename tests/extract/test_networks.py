"""Networks against forward passes written with torch.nn.functional alone, and against files as others publish them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file

from crow.extract import networks
from crow.extract.checkpoints import read
from crow.extract.describer import Describer
from crow.extract.networks import NETWORKS, Network, load, network_named, on_network, own_tensors, receptive_field
from crow.extract.pretrained import WeightsError
from crow.framework.pool import pool
from crow.recipe import RECIPES, RecipeError

VGG16 = ((1, 2), (2, 2), (3, 3), (4, 3), (5, 3))


def plain_pool5(pixels: np.ndarray, tensors: dict[str, torch.Tensor], ceil: bool = False) -> torch.Tensor:
    """(h, w, 3) through VGG16 to pool5, straight from the tensors."""
    x = torch.tensor(pixels.astype(np.float64)).permute(2, 0, 1)[None]
    x = (x / 255 - torch.tensor([0.485, 0.456, 0.406]).view(1, 3, 1, 1)) / torch.tensor([0.229, 0.224, 0.225]).view(
        1, 3, 1, 1
    )
    for block, count in VGG16:
        for n in range(1, count + 1):
            weight, bias = (tensors[f"body.conv{block}_{n}.{part}"].double() for part in ("weight", "bias"))
            x = F.relu(F.conv2d(x, weight, bias, padding=1))
        x = F.max_pool2d(x, 2, 2, ceil_mode=ceil)
    return x


def test_pool5_of_the_real_weights(vgg16: Path) -> None:
    rng = np.random.default_rng(0)
    tensors = load_file(vgg16)
    first = [
        [-0.5537306, 0.1427047, 0.5289615],
        [-0.58312404, 0.35655147, 0.76566225],
        [-0.69022113, -0.04801885, 0.48409155],
    ]
    assert np.allclose(tensors["body.conv1_1.weight"][0, 0], first, atol=1e-7)
    describer = Describer(RECIPES["crow"].sized("original"), engine="torch")
    for height, width in ((97, 130), (64, 224)):
        pixels = rng.integers(0, 256, (height, width, 3), dtype=np.uint8)
        ours = pool(describer.maps(pixels)[0], describer.recipe.pool).double()
        plain = plain_pool5(pixels, tensors)
        assert ours.shape == plain.shape
        assert (ours - plain).norm() / plain.norm() < 1e-4


@pytest.mark.parametrize(("name", "cells"), [("vgg16", (10, 13)), ("vgg16-caffe", (11, 14))])
def test_pools_round_as_the_network_was_trained(name: str, cells: tuple[int, int]) -> None:
    recipe = on_network(RECIPES["crow"], name)
    x = torch.zeros(1, 3, 333, 417)
    with torch.inference_mode():
        y = network_named(name).make("conv5_3")(x)
    assert tuple(pool(y, recipe.pool).shape[2:]) == cells  # 333 -> 167 84 42 21 11 and 166 83 41 20 10


def caffe_like(folder: Path) -> tuple[Path, dict[str, torch.Tensor]]:
    """A full state dict as torchvision publishes it, with random numbers in VGG16's shapes up to conv3_3."""
    torch.manual_seed(0)
    tensors: dict[str, torch.Tensor] = {}
    channels, position = 3, 0
    for width in (64, 64, 0, 128, 128, 0, 256, 256, 256):
        if width:
            tensors[f"features.{position}.weight"] = torch.randn(width, channels, 3, 3) * 0.02
            tensors[f"features.{position}.bias"] = torch.randn(width)
            channels = width
        position += 2 if width else 1
    tensors |= {"classifier.0.weight": torch.randn(10, 8), "classifier.0.bias": torch.randn(10)}
    torch.save(tensors, folder / "full.pth")
    return folder / "full.pth", tensors


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Network:
    """VGG16 that ends at conv3_3, under the name `small`, with a cache of its own."""
    monkeypatch.setenv("CROW_CACHE", str(tmp_path / "cache"))
    network = replace(NETWORKS["vgg16"], layers=networks.VGG16_LAYERS[:7], source=None)
    monkeypatch.setitem(NETWORKS, "small", network)
    return network


def test_published_state_dicts_full_and_features_only(small: Network, tmp_path: Path) -> None:
    path, tensors = caffe_like(tmp_path)
    features = {key.removeprefix("features."): value for key, value in tensors.items() if key.startswith("features.")}
    torch.save(features, tmp_path / "features.pth")
    save_file({f"module.{key}": value for key, value in features.items()}, tmp_path / "tuned.safetensors")
    expected = {key: value.numpy() for key, value in tensors.items() if key.startswith("features.")}
    for file in (path, tmp_path / "features.pth", tmp_path / "tuned.safetensors"):
        own = own_tensors(small, file)
        arrays = [value for key, value in own.items() if key.startswith("body.")]
        assert all(np.array_equal(a, b) for a, b in zip(arrays, expected.values(), strict=True))
    module, digest = load("small", "conv3_3", path)
    assert len(digest) == 64
    assert module(torch.zeros(1, 3, 32, 32, dtype=torch.uint8)).shape == (1, 256, 8, 8)
    with pytest.raises(WeightsError, match="--from FILE"):
        load("small", "conv3_3")


def test_the_authors_caffemodel_is_turned_to_rgb(
    small: Network, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, tensors = caffe_like(tmp_path)
    names = [f"conv{b}_{n}" for b, c in VGG16[:3] for n in range(1, c + 1)]
    keys = [key for key in tensors if key.startswith("features.")]
    blobs = {f"{name}/{i}": tensors[keys[2 * n + i]].numpy() for n, name in enumerate(names) for i in (0, 1)}
    blobs |= {key: value.reshape(1, 1, 1, -1) for key, value in blobs.items() if key.endswith("/1")}  # as old files do
    blobs |= {"fc6/0": np.zeros((1, 1, 4, 8), np.float32), "fc6/1": np.zeros((1, 1, 1, 4), np.float32)}
    monkeypatch.setattr(networks, "read", lambda path: blobs)
    own = own_tensors(small, tmp_path / "VGG.caffemodel")
    assert np.array_equal(own["body.conv1_1.weight"], blobs["conv1_1/0"][:, [2, 1, 0]])
    assert np.array_equal(own["body.conv1_2.weight"], blobs["conv1_2/0"])
    assert np.allclose(own["mean"].ravel(), (122.67891434, 116.66876762, 104.00698793))


def test_a_file_of_another_network_is_refused(small: Network, tmp_path: Path) -> None:
    torch.save({"0.weight": torch.zeros(8, 3, 3, 3), "0.bias": torch.zeros(8)}, tmp_path / "other.pth")
    with pytest.raises(WeightsError, match="shapes of the network"):
        own_tensors(small, tmp_path / "other.pth")
    assert read(tmp_path / "other.pth")["0.weight"].shape == (8, 3, 3, 3)


def test_unknown_names_list_the_known_ones() -> None:
    with pytest.raises(RecipeError, match="vgg16-caffe"):
        network_named("vgg17")
    with pytest.raises(RecipeError, match="conv5_3"):
        load("vgg16", "fc7")


def test_receptive_fields_of_vgg16() -> None:
    assert receptive_field(RECIPES["crow"]) == (212, 32)  # the published figure of pool5
    assert receptive_field(RECIPES["spoc"]) == (196, 16)  # and of conv5_3


class Stripes(torch.nn.Module):
    """A stranger's network: mean brightness of 8 x 8 blocks, and what is left of red."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        grey = F.avg_pool2d(x.mean(1, keepdim=True), 8)
        return torch.cat([F.relu(grey), F.relu(-grey), F.relu(F.avg_pool2d(x[:, :1], 8))], 1)


def test_a_network_of_your_own_is_one_entry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(NETWORKS, "stripes", Network(lambda layer: Stripes(), ("last",), inside=True))
    describer = Describer(on_network(RECIPES["crow"], "stripes"), engine="torch")
    vector = describer(np.full((80, 120, 3), 200, np.uint8))
    assert vector.shape == (1, 3)
    assert np.linalg.norm(vector) == pytest.approx(1)


def test_resnet_equals_a_forward_pass_over_its_state_dict(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """ResNet-50 from a local file with torchvision's names, against functional calls on the very same tensors."""
    monkeypatch.setenv("CROW_CACHE", str(tmp_path / "cache"))
    torch.manual_seed(1)
    state = {}
    for key, value in network_named("resnet50").make("layer4").state_dict().items():
        state[key] = (
            value if value.ndim == 0 else torch.rand_like(value) if value.ndim == 1 else torch.randn_like(value) * 0.05
        )
    torch.save(state | {"fc.weight": torch.zeros(10, 2048), "fc.bias": torch.zeros(10)}, tmp_path / "resnet50.pth")
    module, _ = load("resnet50", "layer4", tmp_path / "resnet50.pth")
    pixels = torch.randint(0, 256, (1, 3, 96, 64), dtype=torch.uint8)
    scale = [torch.tensor(v).view(1, 3, 1, 1) for v in ([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])]
    with torch.inference_mode():
        ours, plain = module(pixels), plain_resnet((pixels / 255 - scale[0]) / scale[1], state)
    assert (ours - plain).norm() / plain.norm() < 1e-4


def plain_resnet(x: torch.Tensor, state: dict[str, torch.Tensor]) -> torch.Tensor:
    def bn(x: torch.Tensor, name: str) -> torch.Tensor:
        names = ("running_mean", "running_var", "weight", "bias")
        return F.batch_norm(x, *(state[f"{name}.{part}"] for part in names))

    x = F.max_pool2d(F.relu(bn(F.conv2d(x, state["conv1.weight"], stride=2, padding=3), "bn1")), 3, 2, 1)
    for layer, count in enumerate((3, 4, 6, 3), 1):
        for i in range(count):
            at, stride = f"layer{layer}.{i}", 2 if i == 0 and layer > 1 else 1
            y = F.relu(bn(F.conv2d(x, state[f"{at}.conv1.weight"]), f"{at}.bn1"))
            y = F.relu(bn(F.conv2d(y, state[f"{at}.conv2.weight"], stride=stride, padding=1), f"{at}.bn2"))
            y = bn(F.conv2d(y, state[f"{at}.conv3.weight"]), f"{at}.bn3")
            if i == 0:
                x = bn(F.conv2d(x, state[f"{at}.downsample.0.weight"], stride=stride), f"{at}.downsample.1")
            x = F.relu(x + y)
    return x
