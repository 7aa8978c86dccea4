"""What a decoder with a cache is given beside its encoder, as PipelinedSeq2SeqLM gives it."""

from __future__ import annotations

from typing import Any

import torch


def decoder_batch(ids: torch.Tensor, position: torch.Tensor, encoded: torch.Tensor, length: int) -> dict[str, Any]:
    """`ids` [batch, tokens] at `position` [tokens]. `encoded` [batch, positions, width] comes with the first ones; it
    fills its part of `length` positions."""
    num_encoded, is_first = encoded.shape[1], int(position[0]) == 0
    return {
        "decoder_input_ids": ids,
        "cache_position": position,
        "encoder_hidden_states": encoded if is_first else torch.zeros_like(encoded[:, :1]),
        "encoder_position": torch.arange(num_encoded) if is_first else torch.tensor([length]),
        "attention_mask": (torch.arange(length) < num_encoded).to(torch.int64).expand(len(ids), -1),
    }
