"""`make train-demo`: a small GPT is trained over CPU daemons, with the losses that one process has.

Starts a planner and three daemons as processes of this machine, exports the module, trains it over two of them with
checkpoints, kills a worker in the middle, goes on from the last checkpoint over all three, and draws the losses.
"""

from __future__ import annotations

import argparse
import copy
import itertools
import os
import signal
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import grpc
import torch
from rich.console import Console

from examples.tiny_gpt import batches, build
from planner.client import PlannerClient, export
from planner.client.local_cluster import LocalCluster
from planner.client.records import Deployment
from planner.client.training import Checkpointing, StepResult
from planner.errors import DeploymentFailed
from planner.partition.objective import Objective, Training
from planner.plan.options import BalancedMode, PlanOptions
from protos.v1 import stage_daemon_pb2, stage_daemon_pb2_grpc

MICROBATCHES = 4
RATE = 3e-3
CLIP_NORM = 1.0
CHECKPOINTS = Checkpointing(run="tiny-gpt", every=10, keep=2)
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
        lines.append(f"{label:6.3f} |" + "".join("*" if column == height else " " for column in heights))
    return lines


def train(
    client: PlannerClient, console: Console, graph_id: str, num_stages: int, steps: int, *, killed_at: int | None = None
) -> list[StepResult]:
    """From the last checkpoint on, if there is one. A worker dies during the step after `killed_at`."""
    options = PlanOptions(
        mode=BalancedMode(num_stages=num_stages),
        objective=Objective.STEP_TIME,
        training=Training(microbatches=MICROBATCHES),
    )
    deployment = client.deploy(client.create_plan(graph_id, options).id)
    before = client.latest_checkpoint(CHECKPOINTS.run)
    results: list[StepResult] = []
    try:
        with client.train(
            deployment.id,
            f"adamw:lr={RATE}",
            clip_norm=CLIP_NORM,
            seed="demo",
            checkpoints=CHECKPOINTS,
            resume=before.id if before else None,
        ) as trainer:
            console.print(f"over {num_stages} stages, from step {trainer.num_steps}")
            for ids, targets in itertools.islice(batches(), trainer.num_steps, steps):
                if trainer.num_steps == killed_at:
                    kill_a_worker(deployment)
                results.append(trainer.step(ids, targets))
                if results[-1].number % 10 == 0:
                    console.print(describe(results[-1], ids.numel()))
    except DeploymentFailed as error:
        if killed_at is None:
            raise
        console.print(f"step {killed_at + 1}: {error.message}", markup=False, highlight=False, soft_wrap=True)
    else:
        client.stop(deployment.id)
    return results


def describe(result: StepResult, num_tokens: int) -> str:
    return (
        f"step {result.number}: loss {result.loss:.4f}, {num_tokens / result.seconds:.0f} tokens/s,"
        f" bubble {result.bubble_share:.0%}"
    )


def kill_a_worker(deployment: Deployment) -> None:
    """That of the last stage, as a machine would lose it."""
    with grpc.insecure_channel(deployment.stages[-1].daemon_address) as channel:
        stub = stage_daemon_pb2_grpc.StageDaemonServiceStub(channel)
        status = stub.GetDaemonStatus(stage_daemon_pb2.GetDaemonStatusRequest())
    for stage in status.stages:
        if stage.deployment_id == deployment.id:
            os.kill(stage.worker_process_id, signal.SIGKILL)


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
    with (
        tempfile.TemporaryDirectory() as folder,
        LocalCluster(data_dir=Path(folder), memory_bytes=(None, None, None), environment=ONE_THREAD) as cluster,
        PlannerClient(cluster.planner_address) as client,
    ):
        graph_id = client.submit(exported).id
        done = train(client, console, graph_id, 2, steps, killed_at=steps // 2 + 5)
        done += train(client, console, graph_id, 3, steps)
    # Steps between the last checkpoint and the loss were done twice; what counts is what went on.
    losses = list({result.number: result.loss for result in done}.values())
    for line in curve(losses):
        console.print(line, markup=False, highlight=False)
    expected = one_process(twin, steps)
    distance = max(abs(ours - theirs) / theirs for ours, theirs in zip(losses, expected, strict=True))
    console.print(f"over stages and a loss as in one process: losses differ by {distance:.1e} at most")
    return 0 if distance <= TOLERANCE else 1


if __name__ == "__main__":
    sys.exit(main())
