"""A torch network as an OpenVINO graph, compiled for this processor and kept in the cache folder."""

from __future__ import annotations

import contextlib
import hashlib
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch

import crow
from crow.extract.engines import EngineError
from crow.extract.engines.kept import keep, kept
from crow.extract.engines.rewrite import whole_numbers
from crow.extract.pretrained import cache_folder

Change = Callable[[Any], Any]  # of a graph, before it is compiled; its repr says all about it


def openvino_quietly() -> ModuleType:
    """The module openvino. Its import would report to its makers over the network: that part is kept out."""
    silence = "openvino" not in sys.modules and "openvino_telemetry" not in sys.modules
    if silence:
        sys.modules["openvino_telemetry"] = None  # type: ignore[assignment]  # None: importing it fails, and it is done without
    try:
        import openvino
    except ImportError as error:
        raise EngineError(f"OpenVINO cannot be loaded ({error}): pip install 'crow-search[cpu]'") from None
    finally:
        if silence:
            del sys.modules["openvino_telemetry"]
    return openvino


def compiled(network: torch.nn.Module, change: Change | None, settings: dict[str, Any]) -> Any:
    """A network -> a compiled model: (1, h, w, 3) uint8 of any size to (1, K, H, W); `change` rewrites its graph first."""
    ov = openvino_quietly()
    place = cache_folder() / "openvino" / f"{_key(network, settings, change)}.blob"
    core = ov.Core()
    if (blob := kept(place)) is not None:
        with contextlib.suppress(RuntimeError):  # of another OpenVINO after all: made anew
            aligned = np.frombuffer(blob, np.uint8).copy()  # OpenVINO wants it so
            return core.import_model(ov.Tensor(aligned), "CPU", settings)
    try:
        graph = graph_of(network)
        model = core.compile_model(change(graph) if change else graph, "CPU", settings)
        keep(model.export_model().getvalue(), place)
        return model
    except RuntimeError as error:
        raise EngineError(f"OpenVINO cannot compile this network: {reason(error)}") from None


def reason(error: BaseException) -> str:
    """What went wrong, in the one line of OpenVINO's many that says it."""
    lines = [line.strip() for line in str(error).splitlines()]
    telling = [line for line in lines if line and not line.startswith(("Exception from", "Check '"))]
    return (telling or [type(error).__name__])[-1]


def _key(network: torch.nn.Module, settings: dict[str, Any], change: Change | None) -> str:
    """What a compiled model depends on: weights, layers, settings, versions, processor, and how graphs are made here."""
    ov = openvino_quietly()
    core = ov.Core()
    processor = [core.get_property("CPU", name) for name in ("FULL_DEVICE_NAME", "OPTIMIZATION_CAPABILITIES")]
    parts = (crow.__version__, ov.__version__, torch.__version__, processor, sorted(settings.items()), change, network)
    hasher = hashlib.sha256(repr(parts).encode())
    for code in sorted(Path(__file__).parent.glob("*.py")):
        hasher.update(code.read_bytes())
    for name, value in network.state_dict().items():
        hasher.update(name.encode())
        hasher.update(value.cpu().contiguous().numpy().tobytes())
    return hasher.hexdigest()[:32]


def graph_of(network: torch.nn.Module) -> Any:
    """A network -> OpenVINO's graph of it, pictures (B, h, w, 3) uint8 going in."""
    ov = openvino_quietly()
    from openvino.frontend.pytorch.ts_decoder import TorchScriptPythonDecoder

    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")  # torch announces that it will trace otherwise one day
        example = torch.zeros(1, 3, 64, 64, dtype=torch.uint8)
        traced = torch.jit.trace(whole_numbers(network.cpu()), example, check_trace=False)  # type: ignore[no-untyped-call]
        decoder = TorchScriptPythonDecoder(traced)  # must live until all is converted
        frontend = ov.frontend.FrontEndManager().load_by_framework("pytorch")
        graph = frontend.convert(frontend.load(decoder))
    graph.reshape([-1, 3, -1, -1])
    steps = ov.preprocess.PrePostProcessor(graph)
    steps.input().tensor().set_element_type(ov.Type.u8).set_layout(ov.Layout("NHWC"))
    steps.input().model().set_layout(ov.Layout("NCHW"))
    return steps.build()
