"""The CPU engines: the network through OpenVINO, in bfloat16 where the processor has it, else float32; or in int8."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from crow.extract.cores import granted_cores
from crow.extract.engines import EngineError, Pictures
from crow.extract.engines.graph import compiled, openvino_quietly, reason
from crow.extract.engines.int8 import Int8, in_int8
from crow.framework.describe import describe
from crow.framework.reduce import Whitening
from crow.recipe import Recipe

CORES_PER_PICTURE = 8  # with more at one picture, some wait for others at every layer


class OpenVinoEngine:
    """A network in OpenVINO; pictures go in one by one, so no vector depends on its neighbours."""

    name, precision, device = "openvino", "exact", "cpu"
    flights = 1

    def __init__(self, network: torch.nn.Module, device: str | None = None) -> None:
        if device not in (None, "cpu"):
            raise EngineError(f"engine {self.name} runs on the CPU, not on device {device!r}")
        cores = granted_cores()
        streams = max(1, cores // CORES_PER_PICTURE)
        settings = {"NUM_STREAMS": streams, "INFERENCE_NUM_THREADS": cores, **self._precision()}
        settings["ENABLE_CPU_PINNING"] = False  # decoding, and other programs, want the same cores
        settings["CPU_RUNTIME_CACHE_CAPACITY"] = 100  # a few sizes: a new one is cheap, and memory stays flat
        self.model = compiled(*self._rewritten(network), settings)
        self.ahead = streams + 1  # pictures inside at a time: one waits, so that no core does
        self.window = 2 * self.ahead
        self._idle: list[Any] = []

    def maps(self, pictures: Pictures) -> Iterator[torch.Tensor]:
        """The map (1, K, H, W) of each picture, in order."""
        running: deque[tuple[Any, Any]] = deque()
        for picture in pictures:
            if len(running) == self.ahead:
                yield self._finish(*running.popleft())
            running.append(self._start(picture))
        while running:
            yield self._finish(*running.popleft())

    def vectors(self, pictures: Pictures, recipe: Recipe, regional: Whitening | None = None) -> NDArray[np.float32]:
        """n pictures -> (n, K), in order."""
        return np.concatenate([describe(x, recipe, regional).numpy() for x in self.maps(pictures)])

    def _precision(self) -> dict[str, Any]:
        """The number type of what is not in eight bits."""
        has = openvino_quietly().Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")
        return {"INFERENCE_PRECISION_HINT": "bf16" if "BF16" in has else "f32"}

    def _rewritten(self, network: torch.nn.Module) -> tuple[torch.nn.Module, Int8 | None]:
        """The network that runs, and what is done to its graph before it is compiled."""
        return network, None

    def _start(self, picture: NDArray[np.uint8]) -> tuple[Any, Any]:
        """Put a picture to work: the request, and the array that must live until it is done."""
        request = None
        with suppress(IndexError):  # another thread may take the last one
            request = self._idle.pop()
        request = request or self.model.create_infer_request()
        batch = np.ascontiguousarray(picture)[None]
        request.start_async([batch], share_inputs=True)
        return request, batch

    def _finish(self, request: Any, batch: Any) -> torch.Tensor:
        """The map of a picture put to work, (1, K, H, W)."""
        try:
            request.wait()
        except RuntimeError as error:
            raise EngineError(f"OpenVINO failed on a picture of shape {batch.shape[1:]}: {reason(error)}") from None
        x = torch.from_numpy(request.get_output_tensor(0).data.copy())
        self._idle.append(request)
        return x


class OpenVinoInt8Engine(OpenVinoEngine):
    """The same in eight bits, with the ranges of the table that crow ships: twice as fast, an identity of its own."""

    name, precision = "openvino-int8", "fast"

    def _precision(self) -> dict[str, Any]:
        return {"INFERENCE_PRECISION_HINT": "f32"}  # on every processor, so that all make the same vectors

    def _rewritten(self, network: torch.nn.Module) -> tuple[torch.nn.Module, Int8 | None]:
        return in_int8(network)
