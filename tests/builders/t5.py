"""T5: an encoder and a decoder that share an embedding; the encoder's result is read by every decoder block."""

from __future__ import annotations

from typing import Any

import torch
from torch.export import Dim

from tests.builders.case import Batch, Case
from tests.builders.tokens import VOCABULARY, token_batch, token_shapes


def t5(*, train: bool = False, layers: int = 2, width: int = 32) -> Case:
    # Imported here, since it takes seconds that only a test which builds one should wait for.
    from transformers import T5Config, T5ForConditionalGeneration

    torch.manual_seed(0)
    config = T5Config(
        num_layers=layers,
        num_decoder_layers=layers,
        d_model=width,
        d_kv=8,
        d_ff=2 * width,
        num_heads=4,
        vocab_size=VOCABULARY,
        decoder_start_token_id=0,
    )
    shapes = token_shapes()
    batch_size = shapes["input_ids"][0]
    return Case(
        module=T5ForConditionalGeneration(config).train(train),
        kwargs=_inputs(2, 8, 6),
        dynamic_shapes={
            **shapes,
            "decoder_input_ids": {0: batch_size, 1: Dim("target", min=2, max=64)},
            "use_cache": None,
        },
        other_batches=tuple(Batch(kwargs=_inputs(*sizes)) for sizes in ((1, 5, 4), (3, 16, 9))),
    )


def _inputs(batch: int, sequence: int, target: int) -> dict[str, Any]:
    decoder_ids = token_batch(batch, target)["input_ids"]
    return {**token_batch(batch, sequence), "decoder_input_ids": decoder_ids, "use_cache": False}
