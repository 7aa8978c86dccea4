"""BERT: an encoder with a padding mask, and a pooler beside its hidden states."""

from __future__ import annotations

import torch

from tests.builders.case import Batch, Case
from tests.builders.tokens import VOCABULARY, token_batch, token_shapes


def bert(*, train: bool = False, layers: int = 2, width: int = 32) -> Case:
    # Imported here, since it takes seconds that only a test which builds one should wait for.
    from transformers import BertConfig, BertModel

    torch.manual_seed(0)
    config = BertConfig(
        num_hidden_layers=layers,
        hidden_size=width,
        intermediate_size=2 * width,
        num_attention_heads=4,
        max_position_embeddings=64,
        vocab_size=VOCABULARY,
    )
    return Case(
        module=BertModel(config).train(train),
        kwargs=token_batch(2, 8),
        dynamic_shapes=token_shapes(),
        other_batches=tuple(Batch(kwargs=token_batch(batch, sequence)) for batch, sequence in ((1, 5), (3, 16))),
    )
