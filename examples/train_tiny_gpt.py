"""`make train-demo`: a small GPT is trained over two CPU daemons, with the losses that one process has.

Starts a planner and two daemons as processes of this machine, exports the module, plans, deploys, trains, draws the
losses, and stops them all.
"""

from __future__ import annotations

import argparse
import copy
import itertools
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import torch
from rich.console import Console

from examples.tiny_gpt import batches, build
from planner.client import PlannerClient, export
from planner.client.local_cluster import LocalCluster
from planner.partition.objective import Objective, Training
from planner.plan.options import BalancedMode, PlanOptions

MICROBATCHES = 4
RATE = 3e-3
CLIP_NORM = 1.0
# Sums depend on how many threads share them: as many here as in the daemons.
ONE_THREAD = {"OMP_NUM_THREADS": "1"}
# Tied weights are summed over stages in another order than in one process. In float32 the steps after a difference of
# one bit soon make it visible; in float64 the curves stay one.
TOLERANCE = 1e-9
_HEIGHT = 8


def one_process(module: torch.nn.Module, steps: int) -> list[float]:
    """The same steps without a pipeline: gradients of the same microbatches, added up."""
    optimizer = torch.optim.AdamW(module.parameters(), lr=RATE)
    losses = []
    for ids, targets in itertools.islice(batches(), steps):
        parts = [
            module(*part) / MICROBATCHES
            for part in zip(ids.chunk(MICROBATCHES), targets.chunk(MICROBATCHES), strict=True)
        ]
        for part in parts:
            part.backward()
        torch.nn.utils.clip_grad_norm_(module.parameters(), CLIP_NORM)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(sum(part.detach() for part in parts)))
    return losses


def curve(losses: Sequence[float]) -> list[str]:
    """Lines to print, the largest loss at the top; one column per step."""
    low, high = min(losses), max(losses)
    heights = [round((loss - low) / ((high - low) or 1.0) * (_HEIGHT - 1)) for loss in losses]
    lines = []
    for height in reversed(range(_HEIGHT)):
        label = low + (high - low) * height / (_HEIGHT - 1)
        lines.append(f"{label:6.3f} |" + "".join("*" if found == height else " " for found in heights))
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=60)
    steps = parser.parse_args().steps
    console = Console()
    torch.set_num_threads(1)
    module, args, kwargs, dynamic_shapes = build()
    module.double()
    twin = copy.deepcopy(module)
    exported = export(module, args, kwargs, dynamic_shapes=dynamic_shapes, name="tiny-gpt")
    options = PlanOptions(
        mode=BalancedMode(num_stages=2), objective=Objective.STEP_TIME, training=Training(microbatches=MICROBATCHES)
    )
    with (
        tempfile.TemporaryDirectory() as folder,
        LocalCluster(data_dir=Path(folder), memory_bytes=(None, None), environment=ONE_THREAD) as cluster,
        PlannerClient(cluster.planner_address) as client,
    ):
        plan = client.create_plan(client.submit(exported).id, options)
        deployment = client.deploy(plan.id)
        losses = []
        with client.train(deployment.id, f"adamw:lr={RATE}", clip_norm=CLIP_NORM) as trainer:
            for ids, targets in itertools.islice(batches(), steps):
                result = trainer.step(ids, targets)
                losses.append(result.loss)
                if result.number % 10 == 0:
                    console.print(
                        f"step {result.number}: loss {result.loss:.4f}, {ids.numel() / result.seconds:.0f} tokens/s,"
                        f" bubble {result.bubble_share:.0%}"
                    )
        client.stop(deployment.id)
    for line in curve(losses):
        console.print(line, markup=False, highlight=False)
    wanted = one_process(twin, steps)
    distance = max(abs(ours - theirs) / theirs for ours, theirs in zip(losses, wanted, strict=True))
    console.print(f"over {len(plan.stages)} stages as in one process: losses differ by {distance:.1e} at most")
    return 0 if distance <= TOLERANCE else 1


if __name__ == "__main__":
    sys.exit(main())
