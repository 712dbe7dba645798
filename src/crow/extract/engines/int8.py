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

TABLE = "int8_vgg16.json"


@dataclass(frozen=True)
class Int8:
    """A change of a graph: every convolution but the first in eight bits; `largest[i]` is where layer i's outputs end."""

    largest: tuple[float, ...]

    def __call__(self, graph: Any) -> Any:
        """The graph, its values rounded to 256 steps after each ReLU, its weights to 255 per output channel."""
        for relu, largest in zip(_of_type(graph, "Relu")[:-1], self.largest, strict=False):
            readers = relu.output(0).get_target_inputs()
            rounded = _rounded(relu.output(0), np.float32(0), np.float32(largest), 256)
            for reader in readers:
                reader.replace_source_output(rounded)
        for convolution in _of_type(graph, "Convolution")[1:]:
            weights = convolution.input_value(1)
            largest = np.abs(weights.get_node().data).max((1, 2, 3), keepdims=True)
            convolution.input(1).replace_source_output(_rounded(weights, -largest, largest, 255))
        graph.validate_nodes_and_infer_types()
        return graph


def int8_for(network: torch.nn.Module) -> Int8:
    """The change for a network whose every convolution is in the table, weights and all; others are refused."""
    table = json.loads(files("crow.extract.engines").joinpath(TABLE).read_text())["layers"]
    own = _layers(network)
    if not own or any(table.get(name, {}).get("weights") != print_ for name, print_ in own.items()):
        raise EngineError("openvino-int8 has ranges for vgg16 with its published weights only: take engine openvino")
    return Int8(tuple(float(table[name]["largest"]) for name in own))


def measure(network: torch.nn.Module, pictures: Iterable[NDArray[np.uint8]]) -> dict[str, dict[str, Any]]:
    """The largest value after each convolution and ReLU over some pictures, as the table holds it."""
    graph = graph_of(network)
    graph.add_outputs([relu.output(0) for relu in _of_type(graph, "Relu")[:-1]])
    request = (
        openvino_quietly()
        .Core()
        .compile_model(graph, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
        .create_infer_request()
    )
    seen = []
    for picture in pictures:
        request.infer([picture[None]])
        last, *others = (float(tensor.data.max()) for tensor in request.output_tensors)
        seen.append([*others, last])
    largest = np.max(seen, 0)
    return {
        name: {"largest": float(f"{top:.4g}"), "weights": print_}
        for (name, print_), top in zip(_layers(network).items(), largest, strict=True)
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
    print(json.dumps({"network": "vgg16", "photographs": len(paths), "layers": layers}, indent=1))


if __name__ == "__main__":
    _main(sys.argv[1])
