"""Eight-bit arithmetic: the network's graph with fixed ranges, from a table measured once on real photographs.

`python -m crow.extract.engines.int8 FOLDER` measures it anew. The table is part of the package, so that two machines
make the same vectors. The first convolution stays in float32: it is under a hundredth of the arithmetic, and rounding
what it is given costs the worst photograph more than all other layers together.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from crow.extract.engines import EngineError
from crow.extract.engines.graph import graph_of, openvino_quietly
from crow.extract.engines.rewrite import balanced

TABLE = "int8_vgg16.json"


@dataclass(frozen=True)
class Int8:
    """A change of a graph: every convolution but the first in eight bits; `ends[i]` is where the values of layer i end."""

    ends: tuple[float, ...]

    def __call__(self, graph: Any) -> Any:
        """The graph, its values rounded to 256 steps after each ReLU, its weights to 255 per output channel."""
        for relu, end in zip(_of_type(graph, "Relu")[:-1], self.ends, strict=True):
            readers = relu.output(0).get_target_inputs()
            rounded = _rounded(relu.output(0), np.float32(0), np.float32(end), 256)
            for reader in readers:
                reader.replace_source_output(rounded)
        for convolution in _of_type(graph, "Convolution")[1:]:
            weights = convolution.input_value(1)
            largest = np.abs(weights.get_node().data).max((1, 2, 3), keepdims=True)
            convolution.input(1).replace_source_output(_rounded(weights, -largest, largest, 255))
        graph.validate_nodes_and_infer_types()
        return graph


def in_int8(network: torch.nn.Module) -> tuple[torch.nn.Module, Int8]:
    """The network with its channels balanced, and the change of its graph; for weights that are in the table alone."""
    network, ends = balanced_by_table(network, "openvino-int8")
    return network, Int8(tuple(ends))


def balanced_by_table(network: torch.nn.Module, engine: str) -> tuple[torch.nn.Module, list[float]]:
    """The network with its channels balanced, and where each layer's values end; an engine's name, for its refusal."""
    table = json.loads(files("crow.extract.engines").joinpath(TABLE).read_text())["layers"]
    own = _layers(network)
    if not own or any(table.get(name, {}).get("weights") != print_ for name, print_ in own.items()):
        other = engine.partition("-")[0]
        raise EngineError(f"{engine} has ranges for vgg16 with its published weights only: take engine {other}")
    return balanced(network, [torch.tensor(table[name]["largest"]) for name in own])


def measure(network: torch.nn.Module, pictures: Iterable[NDArray[np.uint8]]) -> dict[str, dict[str, Any]]:
    """The largest value of every channel after each convolution and ReLU over some pictures, as the table holds it."""
    graph = graph_of(network)
    graph.add_outputs([relu.output(0) for relu in _of_type(graph, "Relu")[:-1]])
    settings = {"INFERENCE_PRECISION_HINT": "f32"}
    request = openvino_quietly().Core().compile_model(graph, "CPU", settings).create_infer_request()
    largest: list[NDArray[np.float32]] = []
    for picture in pictures:
        request.infer([picture[None]])
        last, *others = (tensor.data.max((0, 2, 3)) for tensor in request.output_tensors)
        seen = [*others, last]
        largest = [np.maximum(a, b) for a, b in zip(largest, seen, strict=True)] if largest else seen
    return {
        name: {"weights": print_, "largest": [float(f"{top:.3g}") for top in tops]}
        for (name, print_), tops in zip(_layers(network).items(), largest, strict=True)
    }


def _layers(network: torch.nn.Module) -> dict[str, str]:
    """The name of each convolution, in order, and the start of the sha256 of its weights."""
    convolutions = {name: part for name, part in network.named_modules() if isinstance(part, torch.nn.Conv2d)}
    return {
        name.rpartition(".")[2]: hashlib.sha256(part.weight.detach().cpu().contiguous().numpy().tobytes()).hexdigest()[
            :16
        ]
        for name, part in convolutions.items()
    }


def _of_type(graph: Any, kind: str) -> list[Any]:
    return [node for node in graph.get_ordered_ops() if node.get_type_name() == kind]


def _rounded(output: Any, low: Any, high: Any, steps: int) -> Any:
    """The output of a FakeQuantize node: so many steps from low to high, what lies beyond is cut."""
    from openvino import opset13 as op

    ends = [op.constant(np.asarray(end, np.float32)) for end in (low, high, low, high)]
    return op.fake_quantize(output, *ends, steps).output(0)


def _main(folder: str) -> None:
    from crow.extract.images import prepare
    from crow.extract.networks import load
    from crow.extract.walk import walk
    from crow.recipe import View

    paths = list(walk([Path(folder)]))
    layers = measure(load("vgg16", "conv5_3")[0], (prepare(path, View()).pixels for path in paths))
    print(json.dumps({"network": "vgg16", "photographs": len(paths), "layers": layers}))


if __name__ == "__main__":
    _main(sys.argv[1])
