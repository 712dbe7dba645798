"""The reference: torch in strict float32 on any device; every other engine is measured against it. And bfloat16 on any GPU."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray

from crow.extract.engines import EngineError, Pictures
from crow.extract.engines.batches import within_memory
from crow.extract.engines.rewrite import whole_numbers
from crow.framework.describe import describe
from crow.framework.reduce import Whitening
from crow.recipe import Recipe

STRICT = partial(torch.backends.cudnn.flags, enabled=True, deterministic=True, allow_tf32=False)


class TorchEngine:
    """A network in torch float32, TF32 off. Pictures go in one by one: in a batch, some processors round otherwise."""

    name, precision, kind = "torch", "exact", torch.float32
    flights = 1

    def __init__(self, network: torch.nn.Module, device: str | None = None) -> None:
        self.device = device or ("cuda" if torch.cuda.is_available() else "cpu")
        try:
            self.network = self._rewritten(network).to(self.device, self.kind)
        except (RuntimeError, AssertionError) as error:
            raise EngineError(f"device {self.device!r} cannot be used: {str(error).splitlines()[0]}") from None
        for weight in self.network.parameters():
            if weight.ndim == 4:  # channels last: a quarter faster than torch's default order on a CPU
                weight.data = weight.data.contiguous(memory_format=torch.channels_last)
        self.window = 4 if self.device == "cpu" else 64

    def maps(self, pictures: Pictures) -> Iterator[torch.Tensor]:
        """The map (1, K, H, W) of each picture, in order."""
        for picture in pictures:
            with within_memory([picture]), torch.inference_mode(), STRICT():
                x = torch.from_numpy(picture[None].copy()).to(self.device).permute(0, 3, 1, 2)
                y = self.network(x).float()
            yield y

    def vectors(self, pictures: Pictures, recipe: Recipe, regional: Whitening | None = None) -> NDArray[np.float32]:
        """n pictures -> (n, K), in order."""
        with within_memory(pictures):
            rows = [describe(x, recipe, regional) for x in self.maps(pictures)]
            return torch.cat(rows).cpu().numpy()

    def _rewritten(self, network: torch.nn.Module) -> torch.nn.Module:
        """The network that runs: the one given stays where it is."""
        return copy.deepcopy(network)


class TorchBfloat16Engine(TorchEngine):
    """The same in bfloat16, for GPUs that the kernels of `cuda.py` are not made for.

    One by one here too, since cuDNN takes another algorithm for a batch: a vector would depend on its neighbours. A large
    GPU is not kept busy so.
    """

    name, kind = "torch-bf16", torch.bfloat16

    def __init__(self, network: torch.nn.Module, device: str | None = None) -> None:
        if device == "cpu" or not torch.cuda.is_available():
            raise EngineError(f"engine {self.name} needs a GPU; engine torch runs anywhere")
        super().__init__(network, device)

    def _rewritten(self, network: torch.nn.Module) -> torch.nn.Module:
        rewritten = whole_numbers(network).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        assert isinstance(rewritten, torch.nn.Module)
        return rewritten
