"""ResNet-50 and -101 with torchvision's tensor names: an example of a network of your own."""

from __future__ import annotations

from collections import OrderedDict

import torch
from torch import nn


class Bottleneck(nn.Module):
    """1 x 1, 3 x 3, 1 x 1 convolutions around a shortcut."""

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(channels, width, 1, bias=False), nn.BatchNorm2d(width)
        self.conv2, self.bn2 = nn.Conv2d(width, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width)
        self.conv3, self.bn3 = nn.Conv2d(width, 4 * width, 1, bias=False), nn.BatchNorm2d(4 * width)
        self.downsample = nn.Sequential()
        if stride != 1 or channels != 4 * width:
            shortcut = nn.Conv2d(channels, 4 * width, 1, stride, bias=False)
            self.downsample = nn.Sequential(shortcut, nn.BatchNorm2d(4 * width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(B, K, H, W) -> (B, 4 width, h, w)."""
        y = torch.relu(self.bn1(self.conv1(x)))
        y = torch.relu(self.bn2(self.conv2(y)))
        return torch.relu(self.bn3(self.conv3(y)) + self.downsample(x))


def resnet(layer: str, blocks: tuple[int, ...]) -> nn.Module:
    """ResNet up to and with `layer` (layer1 to layer4), as torchvision arranges it."""
    parts: OrderedDict[str, nn.Module] = OrderedDict()
    parts["conv1"], parts["bn1"] = nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64)
    parts["relu"], parts["maxpool"] = nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)
    channels = 64
    for number, count in enumerate(blocks, 1):
        width = 32 * 2**number
        strides = [1 if number == 1 else 2] + [1] * (count - 1)
        group = [Bottleneck(channels if i == 0 else 4 * width, width, stride) for i, stride in enumerate(strides)]
        parts[f"layer{number}"], channels = nn.Sequential(*group), 4 * width
        if layer == f"layer{number}":
            break
    return nn.Sequential(parts)
