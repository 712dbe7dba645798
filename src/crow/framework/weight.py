"""Steps 2 and 3: one weight per location, one weight per channel."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

from crow.recipe import Channel, RecipeError, Spatial


def uniform_everywhere(x: torch.Tensor, spatial: Spatial) -> torch.Tensor:
    """(B, K, h, w) -> (B, h, w) of ones."""
    return torch.ones_like(x[:, 0])


def response(x: torch.Tensor, spatial: Spatial) -> torch.Tensor:
    """(B, K, h, w) -> (B, h, w): (S' / norm_a(S')) ^ (1/b), S' the sum over channels; zero where nothing fires."""
    total = x.sum(1)
    fires = total > 0
    safe = torch.where(fires, total, 1)  # the roots below have no slope at zero: never take them there
    largest = torch.where(fires, total, 0).amax((1, 2), keepdim=True)  # divided out, so that no power overflows
    largest = torch.where(largest > 0, largest, 1)
    if math.isinf(spatial.a):
        norm = largest
    else:
        powers = torch.where(fires, (safe / largest) ** spatial.a, 0).sum((1, 2), keepdim=True)
        norm = largest * torch.where(powers > 0, powers, 1) ** (1 / spatial.a)
    return torch.where(fires, (safe / norm) ** (1 / spatial.b), 0)


def centre(x: torch.Tensor, spatial: Spatial) -> torch.Tensor:
    """(B, K, h, w) -> (B, h, w): SPoC's Gaussian around the middle of the map."""
    h, w = x.shape[2:]
    y = torch.arange(h, device=x.device, dtype=x.dtype) - (h - 1) / 2
    z = torch.arange(w, device=x.device, dtype=x.dtype) - (w - 1) / 2
    prior = torch.exp(-(y[:, None] ** 2 + z[None] ** 2) / (2 * (spatial.sigma * min(h, w)) ** 2))
    return prior.expand(len(x), h, w)


def inverse_norm(x: torch.Tensor, spatial: Spatial) -> torch.Tensor:
    """(B, K, h, w) -> (B, h, w): 1 / length of the K channels at each place (R-MAC's regions); zero where they are zero."""
    squares = (x * x).sum(1)
    return torch.where(squares > 0, torch.where(squares > 0, squares, 1) ** -0.5, 0)


SPATIAL: dict[str, Callable[[torch.Tensor, Spatial], torch.Tensor]] = {
    "uniform": uniform_everywhere,
    "response": response,
    "centre": centre,
    "inverse-norm": inverse_norm,
}


def spatial_weight(x: torch.Tensor, spatial: Spatial) -> torch.Tensor:
    """(B, K, h, w) -> (B, h, w)."""
    if spatial.kind not in SPATIAL:
        raise RecipeError(f"no spatial weight named {spatial.kind!r}; there are: {', '.join(SPATIAL)}")
    return SPATIAL[spatial.kind](x, spatial)


def shares(x: torch.Tensor) -> torch.Tensor:
    """(B, K, h, w) -> (B, K): Q, the share of places where each channel fires; 1 - Q is its sparsity."""
    return (x > 0).mean((2, 3), dtype=x.dtype)


def uniform_channels(x: torch.Tensor, channel: Channel) -> torch.Tensor:
    """(B, K, h, w) -> (B, K) of ones."""
    return torch.ones_like(x[:, :, 0, 0])


def rarity(q: torch.Tensor, channel: Channel) -> torch.Tensor:
    """(B, K) -> (B, K): log((K eps + sum Q) / (eps + Q_k)), as the paper writes it."""
    return torch.log((q.shape[1] * channel.eps + q.sum(1, keepdim=True)) / (channel.eps + q))


def rarity_released(q: torch.Tensor, channel: Channel) -> torch.Tensor:
    """(B, K) -> (B, K): log(sum Q / Q_k) where the channel fires, else 0, as the released code computes it."""
    return torch.where(q > 0, torch.log(q.sum(1, keepdim=True) / torch.where(q > 0, q, 1)), 0)


def _of_map(weight: Callable[[torch.Tensor, Channel], torch.Tensor]) -> Callable[[torch.Tensor, Channel], torch.Tensor]:
    """A weight of the shares, (B, K) -> (B, K), as one of the map, (B, K, h, w) -> (B, K)."""
    return lambda x, channel: weight(shares(x), channel)


OF_SHARES: dict[str, Callable[[torch.Tensor, Channel], torch.Tensor]] = {  # the weights that depend on Q alone
    "sparsity": rarity,
    "sparsity-released": rarity_released,
}
CHANNEL: dict[str, Callable[[torch.Tensor, Channel], torch.Tensor]] = {
    "uniform": uniform_channels,
    **{kind: _of_map(weight) for kind, weight in OF_SHARES.items()},
}


def channel_weight(x: torch.Tensor, channel: Channel) -> torch.Tensor:
    """(B, K, h, w) -> (B, K)."""
    if channel.kind not in CHANNEL:
        raise RecipeError(f"no channel weight named {channel.kind!r}; there are: {', '.join(CHANNEL)}")
    return CHANNEL[channel.kind](x, channel)
