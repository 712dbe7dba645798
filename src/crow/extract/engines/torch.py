"""The reference: torch in strict float32 on any device. Every other engine is measured against this one."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray

from crow.extract.engines import EngineError, Pictures
from crow.framework.describe import describe
from crow.framework.reduce import Whitening
from crow.recipe import Recipe

BATCH_PIXELS = {"cpu": 1 << 20, "cuda": 1 << 24}  # of one batch: 64 float32 channels of it are 256 MB / 4 GB


class TorchEngine:
    """A network in torch float32, TF32 off; pictures of one size share a batch."""

    name, precision = "torch", "exact"

    def __init__(self, network: torch.nn.Module, device: str | None = None) -> None:
        self.device = device or ("cuda" if torch.cuda.is_available() else "cpu")
        try:
            self.network = network.to(self.device, torch.float32)
        except (RuntimeError, AssertionError) as error:
            raise EngineError(f"device {self.device!r} cannot be used: {str(error).splitlines()[0]}") from None
        for weight in self.network.parameters():
            if weight.ndim == 4:  # channels last: a quarter faster than torch's default order on a CPU
                weight.data = weight.data.contiguous(memory_format=torch.channels_last)
        self.batch_pixels = BATCH_PIXELS["cpu" if self.device == "cpu" else "cuda"]
        self.window = 4 if self.device == "cpu" else 64

    def maps(self, pictures: Pictures) -> Iterator[torch.Tensor]:
        """The map (1, K, H, W) of each picture, in order."""
        for picture in pictures:
            yield self._forward([picture])

    def vectors(self, pictures: Pictures, recipe: Recipe, regional: Whitening | None = None) -> NDArray[np.float32]:
        """n pictures -> (n, K), in order."""
        rows: list[NDArray[np.float32]] = [np.zeros(0, np.float32)] * len(pictures)
        for batch in same_size(pictures, self.batch_pixels):
            x = self._forward([pictures[i] for i in batch])
            for i, row in zip(batch, describe(x, recipe, regional).cpu().numpy(), strict=True):
                rows[i] = row
        return np.stack(rows)

    def _forward(self, pictures: Pictures) -> torch.Tensor:
        """B pictures of one size -> (B, K, H, W)."""
        x = torch.from_numpy(np.stack(pictures)).permute(0, 3, 1, 2).to(self.device)
        with torch.inference_mode(), torch.backends.cudnn.flags(allow_tf32=False):
            y: torch.Tensor = self.network(x)
        return y


def same_size(pictures: Pictures, pixels: int) -> Iterator[list[int]]:
    """Batches of positions: one picture size each, at most so many pixels together (but at least one picture)."""
    groups: dict[tuple[int, ...], list[int]] = {}
    for i, picture in enumerate(pictures):
        groups.setdefault(picture.shape[:2], []).append(i)
    for (height, width), members in groups.items():
        count = max(1, pixels // (height * width))
        for start in range(0, len(members), count):
            yield members[start : start + count]
