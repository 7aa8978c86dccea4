"""Generates with an architecture over stages that keep their key-value caches, beside the model without a cache."""

from __future__ import annotations

import tempfile
from pathlib import Path

import torch
from transformers import PreTrainedModel

from examples.generate_text import Call, generate
from planner.client import CachedModel, CacheSize, export
from planner.plan.options import BalancedMode, PlanOptions
from planner.planning import make_plan
from tests.builders.case import Batch
from tests.builders.plans import inventory_of
from tests.builders.staged import load_stages, run_stages
from tests.builders.weight_files import WeightFiles

LENGTH = 32
NUM_STAGES = 3
NUM_TOKENS = 6
# The second leaves in the cache what the first one's later positions wrote; the third is the first again.
PROMPTS = ([5, 9, 33, 12, 60, 7, 41], [8, 21], [5, 9, 33, 12, 60, 7, 41])


def generates_as(model: PreTrainedModel) -> str:
    """ "eager", which its tokens equal. Raises UnsupportedModule, or AssertionError for other tokens."""
    prompts = [torch.tensor([ids]) for ids in PROMPTS]
    with torch.no_grad():
        expected = [generate(_without_cache(model), prompt, NUM_TOKENS) for prompt in prompts]
    cached = CachedModel.of(model, CacheSize(length=LENGTH))
    inputs, shapes = cached.example()
    exported = export(cached.module, (), inputs, dynamic_shapes=shapes)
    graph = exported.graph
    plan = make_plan(graph, "graph", inventory_of(NUM_STAGES), PlanOptions(mode=BalancedMode(num_stages=NUM_STAGES)))
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        stages = load_stages(graph, plan, WeightFiles.of(exported.save_weights(Path(folder))))

        def in_stages(ids: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
            logits: torch.Tensor = run_stages(
                graph, stages, Batch(kwargs={"input_ids": ids, "cache_position": position})
            )
            return logits[:, -1].argmax(-1)

        generated = [generate(in_stages, prompt, NUM_TOKENS) for prompt in prompts]
    assert generated == expected, f"its tokens are {generated}, not {expected}"
    return "eager"


def _without_cache(model: PreTrainedModel) -> Call:
    """Computes the whole sequence for each token."""
    before = torch.empty(1, 0, dtype=torch.int64)

    def next_token(ids: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
        nonlocal before
        before = torch.cat((before, ids), dim=1)
        logits: torch.Tensor = model(before, use_cache=False).logits
        return logits[:, -1].argmax(-1)

    return next_token
