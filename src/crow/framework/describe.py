"""The spine: Algorithm 1 from the feature map to the vector (step 6, `reduce`, learns from many vectors)."""

from __future__ import annotations

import torch

from crow.framework.aggregate import aggregate
from crow.framework.normalize import l2, normalize
from crow.framework.pool import pool
from crow.framework.reduce import Whitening, reduce
from crow.framework.weight import channel_weight, spatial_weight
from crow.recipe import Recipe, RecipeError


def describe(x: torch.Tensor, recipe: Recipe, regional: Whitening | None = None) -> torch.Tensor:
    """(B, K, H, W) -> (B, K); the map before the recipe's own pooling, of any float type, on any device."""
    x = pooled(x, recipe, regional)  #          (B, K, H, W) -> (B, K, h, w)
    s = spatial_weight(x, recipe.spatial)  #    (B, h, w)
    c = channel_weight(x, recipe.channel)  #    (B, K)
    v = aggregate(x, s, c)  #                   (B, K)
    v = normalize(v, recipe.norm)  #            (B, K)
    return v


def pooled(x: torch.Tensor, recipe: Recipe, regional: Whitening | None = None) -> torch.Tensor:
    """(B, K, H, W) -> (B, K, h, w), step 1 in float32 or better; each region whitened where the recipe says so."""
    if x.ndim != 4 or 0 in x.shape:
        raise ValueError(f"a feature map has the shape (B, K, H, W) with nothing empty, not {tuple(x.shape)}")
    if not x.is_floating_point():
        raise ValueError(f"a feature map holds floating point numbers, not {x.dtype}")
    x = pool(x.float() if x.dtype in (torch.float16, torch.bfloat16) else x, recipe.pool)
    return whiten_regions(x, recipe, regional) if recipe.regional else x


def whiten_regions(x: torch.Tensor, recipe: Recipe, regional: Whitening | None) -> torch.Tensor:
    """(B, K, h, w) -> (B, d, h, w): the channels at each region normalised, whitened, normalised (Tolias et al.)."""
    if regional is None or recipe.regional != regional.fingerprint:
        raise RecipeError(f"{recipe.name} needs the whitening of its regions that it names: {recipe.regional}")
    mean, projection = (torch.tensor(array, device=x.device) for array in (regional.mean, regional.projection))
    whitened = reduce(region_vectors(x).double(), mean, projection, regional.final).to(x.dtype)
    return whitened.reshape(len(x), *x.shape[2:], -1).permute(0, 3, 1, 2)


def region_vectors(x: torch.Tensor) -> torch.Tensor:
    """(B, K, h, w) -> (B h w, K): the channels at each region as a unit row; what a regional whitening learns from."""
    return l2(x.permute(0, 2, 3, 1).reshape(-1, x.shape[1]))
