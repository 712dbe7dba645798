"""Step 4: the weighted sum."""

from __future__ import annotations

import torch


def aggregate(x: torch.Tensor, s: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
    """(B, K, h, w), (B, h, w), (B, K) -> (B, K)."""
    return c * torch.einsum("bkhw,bhw->bk", x, s)
