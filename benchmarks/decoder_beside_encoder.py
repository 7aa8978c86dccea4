"""Tokens per second of a T5 over two daemons: its decoder with a cache beside its encoder, and both as one graph
without one, beside the module in this process.

From the repository's root: `.venv/bin/python -m benchmarks.decoder_beside_encoder [--source 256] [--windows 3]`. Each
daemon has one thread, and so has the module. The model is random; each window asks for the same tokens in each way, in
turns. The median counts.
"""

from __future__ import annotations

import argparse
from contextlib import ExitStack
from functools import partial
from typing import Any

import torch
from torch.export import Dim
from transformers import T5Config, T5ForConditionalGeneration

from benchmarks.one_thread_daemons import one_thread_daemons
from benchmarks.tokens_in_turns import compared
from planner.client import CachedModel, CacheSize, ExportedModel, PlannerClient, export
from planner.client.generation import PipelinedSeq2SeqLM
from planner.client.pipeline import Pipeline
from planner.plan.options import BalancedMode, PlanOptions

MEMORY_BYTES = 4 << 30
NEW_TOKENS = 32


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--source", type=int, default=256)
    parser.add_argument("--windows", type=int, default=3)
    arguments = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    config = T5Config(vocab_size=2000, d_model=512, d_kv=64, d_ff=1024, num_layers=6, num_heads=8)
    config.decoder_start_token_id = 0
    model: Any = T5ForConditionalGeneration(config)
    model.eval()
    generation, source = model.generation_config, torch.randint(3, 2000, (1, arguments.source))
    with ExitStack() as stack:
        _, client = stack.enter_context(one_thread_daemons(2, MEMORY_BYTES))
        length = Dim("source", min=2, max=arguments.source)
        of_encoder = deployed(
            stack,
            client,
            export(model.get_encoder(), (), {"input_ids": source}, dynamic_shapes={"input_ids": {1: length}}),
            "last_hidden_state",
        )
        cached = CachedModel.of(model, CacheSize(length=2 * NEW_TOKENS, encoded_length=arguments.source))
        inputs, shapes = cached.example()
        of_decoder = deployed(stack, client, export(cached.module, (), inputs, dynamic_shapes=shapes), "output[:, -1:]")
        model.decoder.config.use_cache = False
        whole = deployed(stack, client, as_one_graph(model, source), "logits[:, -1:]")
        model.decoder.config.use_cache = True
        models = {
            "the module, with a cache": model,
            "decoder beside its encoder": PipelinedSeq2SeqLM(of_decoder, config, generation, encoder=of_encoder),
            "one graph": PipelinedSeq2SeqLM(whole, config, generation),
        }
        options = {"max_new_tokens": NEW_TOKENS, "do_sample": False, "eos_token_id": None}
        ways = {name: partial(one.generate, source, **options) for name, one in models.items()}
        compared(ways, arguments.windows, NEW_TOKENS, check_equal)


def check_equal(answers: list[torch.Tensor]) -> None:
    assert all(torch.equal(answers[0], others) for others in answers[1:])


def as_one_graph(model: Any, source: torch.Tensor) -> ExportedModel:
    target = Dim("target", min=1, max=2 * NEW_TOKENS)
    return export(
        model,
        (),
        {"input_ids": source, "decoder_input_ids": torch.zeros(1, 5, dtype=torch.int64)},
        dynamic_shapes={"input_ids": None, "decoder_input_ids": {1: target}},
    )


def deployed(stack: ExitStack, client: PlannerClient, exported: ExportedModel, output: str) -> Pipeline:
    """In two stages."""
    plan = client.create_plan(client.submit(exported).id, PlanOptions(mode=BalancedMode(num_stages=2)))
    return stack.enter_context(client.pipeline(client.deploy(plan.id).id, outputs=[output]))


if __name__ == "__main__":
    main()
