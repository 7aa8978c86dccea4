"""Text is generated over stages that keep their key-value caches: the tokens are transformers' own."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from planner.client import CacheSize, PlannerClient, export
from planner.plan.options import BalancedMode, PlanOptions
from tests.models.architectures import find_architecture
from tests.waiting import WAIT_SECONDS

pytestmark = [pytest.mark.services, pytest.mark.slow]

NUM_TOKENS = 12


def test_each_prompt_is_answered_as_by_transformers(client: PlannerClient) -> None:
    """The second one has fewer tokens than the first left in the cache; the third is the first again."""
    # Here: a process that only collects the test need not import transformers.
    from examples.generate_text import NEXT_TOKEN, generate, over_daemons
    from planner.client import CachedModel

    model: Any = find_architecture("causal/llama").module()
    prompts = [torch.tensor([ids]) for ids in ([5, 9, 33, 12, 60, 7, 41], [8, 21], [5, 9, 33, 12, 60, 7, 41])]
    with torch.no_grad():
        expected = [
            model.generate(prompt, max_new_tokens=NUM_TOKENS, do_sample=False, eos_token_id=None)[0, prompt.shape[1] :]
            for prompt in prompts
        ]

    cached = CachedModel.of(model, CacheSize(length=32))
    inputs, shapes = cached.example()
    graph = client.submit(export(cached.module, (), inputs, dynamic_shapes=shapes))
    plan = client.create_plan(graph.id, PlanOptions(mode=BalancedMode(num_stages=3)))
    deployment = client.deploy(plan.id)

    assert len(plan.stages) == 3
    with client.pipeline(deployment.id, outputs=[NEXT_TOKEN], deadline_seconds=WAIT_SECONDS) as pipeline:
        generated = [generate(over_daemons(pipeline), prompt, NUM_TOKENS) for prompt in prompts]
    client.stop(deployment.id)
    assert generated == [tokens.tolist() for tokens in expected]
