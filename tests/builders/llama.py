"""Llama: rotary positions and grouped-query attention (fewer key heads than query heads)."""

from __future__ import annotations

import torch

from tests.builders.case import Batch, Case
from tests.builders.tokens import VOCABULARY, token_batch, token_shapes


def llama(*, train: bool = False, layers: int = 2, width: int = 32) -> Case:
    # Imported here, since it takes seconds that only a test which builds one should wait for.
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        num_hidden_layers=layers,
        hidden_size=width,
        intermediate_size=2 * width,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
        vocab_size=VOCABULARY,
        bos_token_id=1,
        eos_token_id=2,
    )
    return Case(
        module=LlamaForCausalLM(config).train(train),
        kwargs={**token_batch(2, 8), "use_cache": False},
        dynamic_shapes={**token_shapes(), "use_cache": None},
        other_batches=tuple(
            Batch(kwargs={**token_batch(batch, sequence), "use_cache": False}) for batch, sequence in ((1, 5), (3, 16))
        ),
    )
