"""Tokens per second of a llama over two daemons, one sequence at a time and as many as its cache has slots, by
one call and by threads, beside the module in this process.

From the repository's root: `.venv/bin/python -m benchmarks.generation_slots [--slots 4] [--windows 5]`. Each daemon has
one thread, so that two cores are enough, and so has the module. The model is random; each window asks for the same
tokens in each way, in turns. The median counts.
"""

from __future__ import annotations

import argparse
import tempfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from benchmarks.one_thread_daemons import one_thread_daemons
from benchmarks.tokens_in_turns import compared
from planner.client import CacheSize, export_checkpoint
from planner.client.generation import PipelinedCausalLM
from planner.partition.objective import Objective
from planner.plan.options import OptimalMode, PlanOptions

MEMORY_BYTES = 4 << 30
PROMPT_TOKENS, NEW_TOKENS = 16, 24


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--slots", type=int, default=4)
    parser.add_argument("--windows", type=int, default=5)
    arguments = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=2000, hidden_size=512, intermediate_size=1536, num_hidden_layers=8, num_attention_heads=8
        )
    )
    prompts = [torch.randint(3, 2000, (1, PROMPT_TOKENS)) for _ in range(arguments.slots)]
    options = {"max_new_tokens": NEW_TOKENS, "do_sample": False, "eos_token_id": None}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        model.save_pretrained(folder)
        _, client = stack.enter_context(one_thread_daemons(2, MEMORY_BYTES))
        graph = client.submit(export_checkpoint(folder, cache=CacheSize(length=64, num_slots=arguments.slots)))
        plan = client.create_plan(
            graph.id,
            PlanOptions(mode=OptimalMode(), objective=Objective.THROUGHPUT, symbol_values=(("sequence", 1),)),
        )
        deployment = client.deploy(plan.id)
        pipeline = stack.enter_context(client.pipeline(deployment.id, outputs=["output[:, -1:]"]))
        deployed = PipelinedCausalLM(pipeline, model.config)
        threads = stack.enter_context(ThreadPoolExecutor(arguments.slots))
        ways = {
            "the module, one thread": lambda: [model.generate(prompt, use_cache=True, **options) for prompt in prompts],
            "one after the other": lambda: [deployed.generate(prompt, **options) for prompt in prompts],
            f"{arguments.slots} at once": lambda: deployed.generate_each(prompts, **options),
            f"{arguments.slots} threads": lambda: list(
                threads.map(lambda prompt: deployed.generate(prompt, **options), prompts)
            ),
        }
        print(f"{len(plan.stages)} stages, bottleneck {plan.bottleneck_seconds * 1e3:.2f} ms a token predicted")
        compared(ways, arguments.windows, arguments.slots * NEW_TOKENS, check_equal)


def check_equal(answers: list[list[torch.Tensor]]) -> None:
    """Over the daemons; the module in this process may round otherwise."""
    for others in answers[2:]:
        assert all(map(torch.equal, answers[1], others))


if __name__ == "__main__":
    main()
