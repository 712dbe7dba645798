"""Engines: pictures through the network to maps and vectors, as fast as the machine allows.

An engine of precision class `exact` has a cosine of at least 0.9995 to the float32 reference (`torch.py`) on every
photograph tried, so exact engines are interchangeable within one index; `fast` (at least 0.995) is an identity of its own.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from crow.recipe import Recipe, View

if TYPE_CHECKING:
    import torch

    from crow.framework.reduce import Whitening

Pictures = Sequence[NDArray[np.uint8]]  # each (h, w, 3), RGB


class EngineError(ValueError):
    """An engine that is not there or cannot run here."""


class TooLargeError(EngineError):
    """Pictures that an engine has no memory for; each alone may do."""


class Engine(Protocol):
    """What a Describer needs of an engine; how it batches pictures of different sizes is its own affair."""

    name: str
    precision: str  # "exact" or "fast"
    device: str
    window: int  # how many pictures it likes to be given at a time
    flights: int  # from how many threads, so that it never waits

    def maps(self, pictures: Pictures) -> Iterator[torch.Tensor]:
        """The map (1, K, H, W) of each picture, in order."""
        ...

    def vectors(self, pictures: Pictures, recipe: Recipe, regional: Whitening | None = None) -> NDArray[np.float32]:
        """n pictures -> (n, K), in order."""
        ...


def _torch(network: torch.nn.Module, device: str | None) -> Engine:
    from crow.extract.engines.torch import TorchEngine

    return TorchEngine(network, device)


def _torch_bf16(network: torch.nn.Module, device: str | None) -> Engine:
    from crow.extract.engines.torch import TorchBfloat16Engine

    return TorchBfloat16Engine(network, device)


def _cuda(network: torch.nn.Module, device: str | None) -> Engine:
    from crow.extract.engines.cuda import CudaEngine

    return CudaEngine(network, device)


def _cuda_fp8(network: torch.nn.Module, device: str | None) -> Engine:
    from crow.extract.engines.cuda import CudaFp8Engine

    return CudaFp8Engine(network, device)


def _openvino(network: torch.nn.Module, device: str | None) -> Engine:
    from crow.extract.engines.openvino import OpenVinoEngine

    return OpenVinoEngine(network, device)


def _openvino_int8(network: torch.nn.Module, device: str | None) -> Engine:
    from crow.extract.engines.openvino import OpenVinoInt8Engine

    return OpenVinoInt8Engine(network, device)


ENGINES: dict[str, Callable[[torch.nn.Module, str | None], Engine]] = {
    "torch": _torch,
    "torch-bf16": _torch_bf16,
    "cuda": _cuda,
    "cuda-fp8": _cuda_fp8,
    "openvino": _openvino,
    "openvino-int8": _openvino_int8,
}


def choose(view: View, device: str | None = None) -> str:
    """The fastest engine of class `exact` that this machine can run a view on; says so where it falls back to torch."""
    import torch

    if device != "cpu" and torch.cuda.is_available():
        capability = torch.cuda.get_device_capability(device)
        if capability == (9, 0) and view.network.startswith("vgg") and view.layer != "conv1_1" and _compiles():
            return "cuda"
        return "torch-bf16" if capability >= (8, 0) else "torch"
    if device not in (None, "cpu"):
        return "torch"
    try:
        from crow.extract.engines.graph import openvino_quietly

        openvino_quietly()
    except EngineError as error:
        logging.getLogger("crow").warning("%s; until then the network runs in torch, several times slower", error)
        return "torch"
    return "openvino"


def _compiles() -> bool:
    """Whether what the engine `cuda` needs beside torch is there; says so where it is not."""
    from crow.extract.engines.driver import libraries

    try:
        libraries()
    except EngineError as error:
        logging.getLogger("crow").warning("%s; until then the network runs in torch, several times slower", error)
        return False
    return True


def engine_named(name: str, network: torch.nn.Module, device: str | None = None) -> Engine:
    """One of ENGINES around a network, or an error that lists them."""
    if name not in ENGINES:
        raise EngineError(f"no engine named {name!r}; there are: {', '.join(ENGINES)}")
    return ENGINES[name](network, device)


REVISIONS: dict[str, int] = {  # raised when an engine's vectors change by more than rounding; 0 where not named
    "openvino": 1,  # its first layer takes whole numbers, since dark and blank pictures lost digits
    "openvino-int8": 1,
}


def revised(name: str) -> str:
    """An engine's name with its revision: vectors and maps that are kept under another one are not taken."""
    return f"{name}.{REVISIONS.get(name, 0)}"
