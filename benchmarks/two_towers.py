"""A lone batch through a CLIP: its two towers beside each other on three daemons, and all of it on one.

From the repository's root: `.venv/bin/python -m benchmarks.two_towers [--layers 6] [--windows 5]`. Each daemon has one
thread, so that two cores are enough: the third stage joins the towers. Both plans are for the least latency, with
measured seconds; calls take turns, and the median counts.
"""

from __future__ import annotations

import argparse
import statistics
import time
from contextlib import ExitStack

import torch
from transformers import CLIPConfig, CLIPModel

from benchmarks.one_thread_daemons import one_thread_daemons
from planner.client import Pipeline, export
from planner.partition.objective import Objective
from planner.plan.options import OptimalMode, PlanOptions

NUM_DAEMONS, MEMORY_BYTES = 3, 4 << 30
CALLS = 5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", type=int, default=6, help="of each tower")
    parser.add_argument("--windows", type=int, default=5)
    arguments = parser.parse_args()
    batch = {
        "input_ids": torch.randint(3, 1000, (4, 77)),
        "pixel_values": torch.randn(4, 3, 224, 224),
        "attention_mask": torch.ones(4, 77, dtype=torch.int64),
    }
    with ExitStack() as stack:
        _, client = stack.enter_context(one_thread_daemons(NUM_DAEMONS, MEMORY_BYTES))
        graph = client.submit(export(clip(arguments.layers), (), batch))
        client.profile_graph(graph.id)
        device_ids = [registered.device.id for registered in client.list_devices()]
        pipelines: dict[str, Pipeline] = {}
        for count in (1, NUM_DAEMONS):
            options = PlanOptions(mode=OptimalMode(), objective=Objective.LATENCY)
            plan = client.create_plan(graph.id, options, device_ids=device_ids[:count])
            name = f"{len(plan.stages)} on {count}, {plan.latency_seconds * 1e3:.1f} ms predicted"
            pipelines[name] = stack.enter_context(client.pipeline(client.deploy(plan.id).id))
        taken: dict[str, list[float]] = {name: [] for name in pipelines}
        for window in range(arguments.windows + 1):
            for name, pipeline in pipelines.items():
                for _ in range(CALLS):
                    started = time.perf_counter()
                    pipeline(**batch)
                    if window:
                        taken[name].append(time.perf_counter() - started)
        whole = statistics.median(next(iter(taken.values())))
        print(f"{'stages on daemons':<36}{'ms':>8}{'of one':>8}")
        for name, seconds in taken.items():
            print(f"{name:<36}{statistics.median(seconds) * 1e3:>8.1f}{statistics.median(seconds) / whole:>8.2f}")


def clip(layers: int) -> CLIPModel:
    sizes = {"hidden_size": 256, "intermediate_size": 1024, "num_attention_heads": 4, "num_hidden_layers": layers}
    text = {**sizes, "vocab_size": 1000, "max_position_embeddings": 77, "eos_token_id": 2}
    vision = {**sizes, "image_size": 224, "patch_size": 16}
    torch.manual_seed(0)
    return CLIPModel(CLIPConfig(text_config=text, vision_config=vision, projection_dim=128)).eval()


if __name__ == "__main__":
    main()
