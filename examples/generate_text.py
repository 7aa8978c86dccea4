"""Generates with a key-value cache over two CPU daemons, and compares each token with one process's.

    python -m examples.generate_text

`planner-cli submit examples.generate_text:build` takes the same module.

The cache is the module's own buffers: each stage keeps those of its layers from one token to the next. The weights are
random, so that what is generated says nothing.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from rich.console import Console

from examples import tiny_llama
from planner.client import CachedModel, CacheSize, PlannerClient, export
from planner.client.local_cluster import LocalCluster
from planner.client.pipeline import Pipeline
from planner.plan.options import BalancedMode, PlanOptions

# Positions of prompt and answer together.
CACHE_LENGTH = 128
NEW_TOKENS = 32
MEMORY_BYTES = 1 << 30
# The logits of the last position are large, the token is eight bytes: it is chosen on the last stage's device.
NEXT_TOKEN = "output[:, -1].argmax(-1)"

Call = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def generate(next_token: Call, prompt: torch.Tensor, count: int) -> list[int]:
    """Greedy. The prompt at once, then token by token; the cache of an earlier prompt is written over."""
    token = next_token(prompt, torch.arange(prompt.shape[1]))
    tokens = [int(token)]
    for position in range(prompt.shape[1], prompt.shape[1] + count - 1):
        token = next_token(token.reshape(1, 1), torch.tensor([position]))
        tokens.append(int(token))
    return tokens


def build() -> tuple[torch.nn.Module, tuple[()], dict[str, torch.Tensor], dict[str, object]]:
    """As planner-cli takes a factory."""
    cached = CachedModel.of(tiny_llama.build()[0], CacheSize(length=CACHE_LENGTH))
    return cached.module, (), *cached.example()


def over_daemons(pipeline: Pipeline) -> Call:
    def next_token(ids: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
        token: torch.Tensor = pipeline(input_ids=ids, cache_position=position)[NEXT_TOKEN]
        return token

    return next_token


def in_one_process(module: torch.nn.Module) -> Call:
    def next_token(ids: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = module(input_ids=ids, cache_position=position)
        return logits[:, -1].argmax(-1)

    return next_token


def main() -> int:
    console = Console()
    torch.set_num_threads(1)
    module, _, inputs, shapes = build()
    prompts = [torch.randint(0, 1000, (1, length)) for length in (16, 5, 11)]

    with (
        tempfile.TemporaryDirectory() as folder,
        LocalCluster(
            data_dir=Path(folder), memory_bytes=(MEMORY_BYTES,) * 2, environment={"OMP_NUM_THREADS": "1"}
        ) as cluster,
        PlannerClient(cluster.planner_address) as client,
    ):
        graph = client.submit(export(module, (), inputs, dynamic_shapes=shapes, name="tiny-llama-with-cache"))
        options = PlanOptions(mode=BalancedMode(num_stages=2), symbol_values=(("sequence", 1),))
        plan = client.create_plan(graph.id, options)
        deployment = client.deploy(plan.id)
        with client.pipeline(deployment.id, outputs=[NEXT_TOKEN]) as pipeline:
            began = time.perf_counter()
            generated = [generate(over_daemons(pipeline), prompt, NEW_TOKENS) for prompt in prompts]
            seconds = time.perf_counter() - began
        client.stop(deployment.id)

    with torch.no_grad():
        began = time.perf_counter()
        expected = [generate(in_one_process(module), prompt, NEW_TOKENS) for prompt in prompts]
        alone = time.perf_counter() - began
    count = NEW_TOKENS * len(prompts)
    console.print(
        f"{count} tokens over {len(plan.stages)} daemons: {1e3 * seconds / count:.1f} ms each, "
        f"{1e3 * alone / count:.1f} in one process"
    )
    is_same = generated == expected
    console.print("the same tokens" if is_same else f"OTHER TOKENS: {generated}, not {expected}")
    return int(not is_same)


if __name__ == "__main__":
    sys.exit(main())
