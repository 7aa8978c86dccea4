"""Generates with an architecture over stages that keep their key-value caches, beside the model without a cache."""

from __future__ import annotations

import tempfile
from pathlib import Path

import torch
from transformers import PreTrainedModel

from examples.generate_text import Call, generate
from planner.client import CachedModel, CacheSize, export
from planner.client.export.cached_decoder import Encoded
from planner.plan.options import BalancedMode, PlanOptions
from planner.planning import make_plan
from tests.builders.case import Batch
from tests.builders.decoder_batches import decoder_batch
from tests.builders.plans import inventory_of
from tests.builders.staged import load_stages, run_stages
from tests.builders.weight_files import WeightFiles

LENGTH = 32
ENCODED_LENGTH = 11
NUM_STAGES = 3
NUM_TOKENS = 6
# The second leaves in the cache what the first one's later positions wrote; the third is the first again.
PROMPTS = ([5, 9, 33, 12, 60, 7, 41], [8, 21], [5, 9, 33, 12, 60, 7, 41])


def generates_as(model: PreTrainedModel) -> str:
    """ "eager", which its tokens equal. Raises UnsupportedModule, or AssertionError for other tokens."""
    of_encoder = model.config.is_encoder_decoder
    cached = CachedModel.of(model, CacheSize(length=LENGTH, encoded_length=ENCODED_LENGTH if of_encoder else 0))
    prompts = [torch.tensor([ids]) for ids in PROMPTS]
    encoded = [_encoded(cached, ids.shape[1]) for ids in prompts] if of_encoder else [None] * len(prompts)
    with torch.no_grad():
        expected = [
            generate(_without_cache(model, states), ids, NUM_TOKENS)
            for ids, states in zip(prompts, encoded, strict=True)
        ]
    inputs, shapes = cached.example()
    exported = export(cached.module, (), inputs, dynamic_shapes=shapes)
    graph = exported.graph
    plan = make_plan(graph, "graph", inventory_of(NUM_STAGES), PlanOptions(mode=BalancedMode(num_stages=NUM_STAGES)))
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        stages = load_stages(graph, plan, WeightFiles.of(exported.save_weights(Path(folder))))

        def in_stages(states: torch.Tensor | None) -> Call:
            def next_token(ids: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
                if states is None:
                    batch = {"input_ids": ids, "cache_position": position}
                else:
                    batch = decoder_batch(ids, position, states, ENCODED_LENGTH)
                # Not every model reads a mask of what is encoded.
                given = {name: tensor for name, tensor in batch.items() if name in inputs}
                logits: torch.Tensor = run_stages(graph, stages, Batch(kwargs=given))
                return logits[:, -1].argmax(-1)

            return next_token

        generated = [generate(in_stages(states), ids, NUM_TOKENS) for ids, states in zip(prompts, encoded, strict=True)]
    assert generated == expected, f"its tokens are {generated}, not {expected}"
    return "eager"


def _encoded(cached: CachedModel, length: int) -> torch.Tensor:
    """As an encoder gives it: as many positions as the decoder can do with."""
    inputs, _ = cached.example()
    states = inputs["encoder_hidden_states"]
    return torch.randn(1, length if "attention_mask" in inputs else ENCODED_LENGTH, states.shape[2], dtype=states.dtype)


def _without_cache(model: PreTrainedModel, states: torch.Tensor | None) -> Call:
    """Computes the whole sequence for each token."""
    before = torch.empty(1, 0, dtype=torch.int64)

    def next_token(ids: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
        nonlocal before
        before = torch.cat((before, ids), dim=1)
        if states is None:
            outputs = model(before, use_cache=False)
        else:
            outputs = model(
                encoder_outputs=Encoded(last_hidden_state=states), decoder_input_ids=before, use_cache=False
            )
        logits: torch.Tensor = outputs.logits
        return logits[:, -1].argmax(-1)

    return next_token
