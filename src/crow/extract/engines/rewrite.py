"""The same network in other numbers, for arithmetic of few digits: rewritten copies that compute the same."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import nn


class WholeNumbers(nn.Module):
    """A first convolution that takes pictures as they are, 0 to 255: mean and scale are inside its weights.

    Whole numbers up to 256 are exact in bfloat16, normalised pictures are not: the texture of dark or almost blank
    photographs would be rounded away (cosine 0.9975 to the reference for one of them, 0.99998 so). What the mean has
    after the point goes through a fourth channel of ones, so that the border, zero after the mean, stays exact too.
    """

    mean: torch.Tensor
    weight: torch.Tensor
    bias: torch.Tensor

    def __init__(self, first: nn.Conv2d, mean: torch.Tensor, std: torch.Tensor) -> None:
        super().__init__()
        weight = first.weight / std
        rest = -(weight * (mean - mean.round())).sum(1, keepdim=True)
        self.register_buffer("mean", mean.round())
        self.register_buffer("weight", torch.cat([weight, rest], 1))
        self.register_buffer("bias", first.bias)
        self.stride, self.padding = first.stride, first.padding

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(B, 3, h, w), 0..255 -> (B, K, H, W)."""
        x = x - self.mean
        x = torch.cat([x, torch.ones_like(x[:, :1])], 1)
        return torch.conv2d(x, self.weight, self.bias, self.stride, self.padding)


def whole_numbers(network: nn.Module) -> nn.Module:
    """A copy of a preprocessed network whose first convolution takes whole numbers; others stay as they are."""
    changed: Any = copy.deepcopy(network)
    name = next((name for name, part in changed.named_modules() if isinstance(part, nn.Conv2d)), None)
    if name and hasattr(changed, "mean"):
        changed.set_submodule(name, WholeNumbers(changed.get_submodule(name), changed.mean, changed.std))
        changed.mean, changed.std = torch.zeros_like(changed.mean), torch.ones_like(changed.std)
    return changed


def balanced(network: nn.Module, largest: Sequence[torch.Tensor]) -> tuple[nn.Module, list[float]]:
    """A copy whose channels reach more equal values, and where each layer's values end; `largest`: (K,) of each layer.

    A channel is divided by a number that the next convolution multiplies by: ReLU and max pooling let it through. The
    root of its share of the layer's largest value halves, in digits, what channels and weights differ by.
    """
    network, ends = copy.deepcopy(network), []
    convolutions: list[Any] = [part for part in network.modules() if isinstance(part, nn.Conv2d)]
    for (one, following), values in zip(pairwise(convolutions), largest, strict=False):
        share = (values / values.max()).clamp(min=0.01) ** 0.5
        one.weight.data = one.weight / share[:, None, None, None]
        one.bias.data = one.bias / share
        following.weight.data = following.weight * share[:, None, None]
        ends.append(float((values / share).max()))
    return network, ends
