"""A 1F1B training step of two stages beside torch.distributed.pipelining's, in interleaved windows of one run.

    python -m benchmarks.training_peers [windows]

A step is 8 microbatches forward and backward, and SGD. "One process" runs both stages after each other; ideal is what
two devices would take if they did the same work, and waited only to fill and drain. The deployed pipeline also carries
the batch from a client and the losses back to it. The predicted step is of a plan made after a profile, backward
passes too. Every process runs one thread per operator.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import torch
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.nn import functional

from benchmarks.one_thread_daemons import one_thread_daemons
from benchmarks.pipeline_peers import (
    MEMORY_BYTES,
    SHAPES,
    Shape,
    Spent,
    Stage,
    Window,
    cpu_seconds,
    processes_under,
    two_ranks,
)
from planner.client import export
from planner.partition.objective import PipelineSchedule, Training
from planner.plan.options import CutMode, PlanOptions
from planner.schedule.prediction import idle_share, predict

SHAPE = next(shape for shape in SHAPES if shape.name.startswith("8 ms"))
MICROBATCHES = 8
NUM_STAGES = 2
RATE = 1e-3
DEFAULT_WINDOWS = 10


class Both(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = Stage(SHAPE), Stage(SHAPE)

    def forward(self, hidden: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return functional.mse_loss(self.second(self.first(hidden)), target)


def batch() -> tuple[torch.Tensor, torch.Tensor]:
    return SHAPE.input().repeat(MICROBATCHES, 1), SHAPE.input().repeat(MICROBATCHES, 1).flip(1)


@contextmanager
def one_process() -> Iterator[Window]:
    module = Both()
    optimizer = torch.optim.SGD(module.parameters(), lr=RATE)
    inputs, targets = (tensor.split(SHAPE.rows) for tensor in batch())

    def window(num: int) -> Spent:
        began, began_cpu = time.monotonic(), time.process_time()
        for _ in range(num):
            for microbatch in zip(inputs, targets, strict=True):
                (module(*microbatch) / MICROBATCHES).backward()
            optimizer.step()
            optimizer.zero_grad()
        return Spent(wall=time.monotonic() - began, cpu=time.process_time() - began_cpu)

    yield window


def _one_f_one_b(rank: int, shape: Shape, waker: object, ring: torch.Tensor) -> Callable[[int], None]:
    return one_f_one_b(rank, Stage(shape), *batch())


def one_f_one_b(rank: int, stage: nn.Module, whole: torch.Tensor, targets: torch.Tensor) -> Callable[[int], None]:
    """So many of torch's steps of this rank's stage, and SGD."""
    optimizer = torch.optim.SGD(stage.parameters(), lr=RATE)
    pipeline_stage = PipelineStage(stage, rank, NUM_STAGES, torch.device("cpu"))
    schedule = Schedule1F1B(pipeline_stage, MICROBATCHES, loss_fn=functional.mse_loss)

    def work(num: int) -> None:
        with torch.enable_grad():
            for _ in range(num):
                if rank == 0:
                    schedule.step(whole)
                else:
                    schedule.step(target=targets, losses=[])
                optimizer.step()
                optimizer.zero_grad()

    return work


@contextmanager
def torch_pipelining() -> Iterator[Window]:
    with two_ranks(SHAPE, _one_f_one_b) as window:
        yield window


class Deployed:
    """`predicted` and what its steps took: (seconds, bubble share) each."""

    def __init__(self) -> None:
        self.predicted = (0.0, 0.0)
        self.measured: list[tuple[float, float]] = []

    @contextmanager
    def window(self) -> Iterator[Window]:
        module, (whole, targets) = Both(), batch()
        training = Training(
            schedule=PipelineSchedule.ONE_F_ONE_B, microbatches=MICROBATCHES, optimizer_bytes_per_parameter=0.0
        )
        with one_thread_daemons(NUM_STAGES, MEMORY_BYTES) as (cluster, client):
            graph = client.submit(export(module, (whole[: SHAPE.rows], targets[: SHAPE.rows])))
            client.profile_graph(graph.id, device_ids=[cluster.device_id(0)], backward=True)
            options = PlanOptions(mode=CutMode(module_paths=("first",)), training=training)
            plan = client.create_plan(graph.id, options)
            assert len(plan.stages) == NUM_STAGES
            assert plan.step_seconds is not None
            self.predicted = (plan.step_seconds, idle_share(plan, predict(plan)))
            deployment = client.deploy(plan.id)
            daemons = [daemon.process_id for daemon in cluster.daemons.values()]
            with client.train(deployment.id, f"sgd:lr={RATE}") as trainer:
                processes = processes_under([os.getpid(), *daemons])

                def window(num: int) -> Spent:
                    began, began_cpu = time.monotonic(), cpu_seconds(processes)
                    for _ in range(num):
                        result = trainer.step(whole, targets)
                        self.measured.append((result.seconds, result.bubble_share))
                    wall = time.monotonic() - began
                    return Spent(wall=wall, cpu=cpu_seconds(processes) - began_cpu)

                yield window
            client.stop(deployment.id)


def main(num_windows: int = DEFAULT_WINDOWS) -> None:
    torch.set_num_threads(1)
    deployed = Deployed()
    peers = {"one process": one_process, "torch pipelining": torch_pipelining, "deployed": deployed.window}
    windows_of: dict[str, list[Spent]] = {name: [] for name in peers}
    loads = [os.getloadavg()[0]]
    with ExitStack() as stack:
        windows = {name: stack.enter_context(peer()) for name, peer in peers.items()}
        for _ in range(1 + num_windows):
            for name, window in windows.items():
                windows_of[name].append(window(1))
    loads.append(os.getloadavg()[0])
    cpu = {name: statistics.fmean(each.cpu for each in windows[1:]) for name, windows in windows_of.items()}
    print(f"{MICROBATCHES} microbatches, {SHAPE.name}; {num_windows} windows; load {loads[0]:.1f} to {loads[1]:.1f}")
    print("| ms per step | median | least | CPU in all processes |")
    print("|---|---|---|---|")
    for name, steps in windows_of.items():
        walls = [each.wall for each in steps[1:]]
        print(f"| {name} | {statistics.median(walls) * 1e3:.0f} | {min(walls) * 1e3:.0f} | {cpu[name] * 1e3:.0f} |")
    ideal = cpu["one process"] / NUM_STAGES * (MICROBATCHES + NUM_STAGES - 1) / MICROBATCHES
    print(f"ideal, by the CPU time of one process: {ideal * 1e3:.0f} ms")
    seconds, bubble = (statistics.median(column) for column in zip(*deployed.measured[1:], strict=True))
    print(f"predicted step {deployed.predicted[0] * 1e3:.0f} ms, measured {seconds * 1e3:.0f}")
    print(f"predicted bubble {deployed.predicted[1]:.1%}, measured {bubble:.1%}")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
