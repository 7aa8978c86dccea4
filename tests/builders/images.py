"""Batches of random images."""

from __future__ import annotations

import torch


def image_batch(batch: int, size: int) -> torch.Tensor:
    """(batch, 3, size, size)."""
    return torch.randn(batch, 3, size, size, generator=torch.Generator().manual_seed(batch * 1000 + size))
