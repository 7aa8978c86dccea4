"""GPT-2: a decoder whose output head is tied to its token embedding."""

from __future__ import annotations

import torch

from tests.builders.case import Batch, Case
from tests.builders.tokens import VOCABULARY, token_batch, token_shapes


def gpt2(*, train: bool = False, layers: int = 12, width: int = 32) -> Case:
    # Imported here, since it takes seconds that only a test which builds one should wait for.
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    config = GPT2Config(
        n_layer=layers,
        n_embd=width,
        n_head=4,
        n_positions=64,
        vocab_size=VOCABULARY,
        bos_token_id=1,
        eos_token_id=2,
    )
    return Case(
        module=GPT2LMHeadModel(config).train(train),
        kwargs={**token_batch(2, 8), "use_cache": False},
        dynamic_shapes={**token_shapes(), "use_cache": None},
        other_batches=tuple(
            Batch(kwargs={**token_batch(batch, sequence), "use_cache": False}) for batch, sequence in ((1, 5), (3, 16))
        ),
    )
