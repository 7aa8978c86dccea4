"""Batches of token ids with attention masks, and the dynamic shapes that let both dimensions vary."""

from __future__ import annotations

from typing import Any

import torch
from torch.export import Dim

VOCABULARY = 64


def token_batch(batch: int, sequence: int) -> dict[str, Any]:
    """Random ids, the last row padded by one token on the right."""
    generator = torch.Generator().manual_seed(batch * 1000 + sequence)
    ids = torch.randint(3, VOCABULARY, (batch, sequence), generator=generator)
    mask = torch.ones(batch, sequence, dtype=torch.int64)
    mask[-1, -1] = 0
    return {"input_ids": ids, "attention_mask": mask}


def token_shapes(max_sequence: int = 64) -> dict[str, Any]:
    shape = {0: Dim("batch", min=1, max=1024), 1: Dim("sequence", min=2, max=max_sequence)}
    return {"input_ids": shape, "attention_mask": shape}


def num_tokens(ids: torch.Tensor, targets: torch.Tensor) -> float:
    """What `--reduction` may name: none is padding."""
    return float(targets.numel())
