"""What a 1F1B training step holds in each stage's process, beside torch.distributed.pipelining's.

    python -m benchmarks.training_memory [steps]

Two stages of an encoder, 8 microbatches a step, SGD. Held is the most that a process had in memory during the steps
beyond what it had before the first: activations and gradients, and in the deployed one what came from the client.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import active_children
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional

from benchmarks.one_thread_daemons import one_thread_daemons
from benchmarks.pipeline_peers import SHAPES, two_ranks
from benchmarks.recomputed_activations import peak_bytes, worker_ids
from benchmarks.training_peers import MICROBATCHES, NUM_STAGES, RATE, one_f_one_b
from planner.client import export
from planner.partition.objective import PipelineSchedule, Training
from planner.plan.options import CutMode, PlanOptions

WIDTH, LAYERS, ROWS, LENGTH = 256, 4, 8, 128
MEMORY_BYTES = 4 << 30
DEFAULT_STEPS = 5
# Of /proc/PID/clear_refs: the most so far is what there is now.
FORGET_PEAK = "5"

# Runs so many steps; and the process of each stage.
Peer = tuple[Callable[[int], None], list[int]]


class Half(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(
            *(
                nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, dropout=0.0, batch_first=True)
                for _ in range(LAYERS // NUM_STAGES)
            )
        )


class Both(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = Half(), Half()

    def forward(self, hidden: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return functional.mse_loss(self.second(self.first(hidden)), target)


def batch() -> tuple[torch.Tensor, torch.Tensor]:
    inputs, targets = torch.randn(2, MICROBATCHES * ROWS, LENGTH, WIDTH, generator=torch.Generator().manual_seed(1))
    return inputs.clone(), targets.clone()


def _one_f_one_b(rank: int, shape: object, waker: object, ring: torch.Tensor) -> Callable[[int], None]:
    return one_f_one_b(rank, Half(), *batch())


@contextmanager
def torch_pipelining() -> Iterator[Peer]:
    others = set(active_children())
    with two_ranks(SHAPES[0], _one_f_one_b) as window:
        ranks = sorted({child.pid for child in set(active_children()) - others if child.pid})
        yield lambda num: window(num) and None, ranks


@contextmanager
def deployed() -> Iterator[Peer]:
    whole, targets = batch()
    training = Training(
        schedule=PipelineSchedule.ONE_F_ONE_B, microbatches=MICROBATCHES, optimizer_bytes_per_parameter=0.0
    )
    with one_thread_daemons(NUM_STAGES, MEMORY_BYTES) as (cluster, client):
        graph = client.submit(export(Both(), (whole[:ROWS], targets[:ROWS])))
        client.profile_graph(graph.id, device_ids=[cluster.device_id(0)], backward=True)
        plan = client.create_plan(graph.id, PlanOptions(mode=CutMode(module_paths=("first",)), training=training))
        for stage in plan.stages:
            planned = stage.memory.saved_bytes + stage.memory.activation_bytes
            print(f"stage {stage.index}: planned {_mebibytes(planned)} of activations")
        deployment = client.deploy(plan.id)
        with client.train(deployment.id, f"sgd:lr={RATE}") as trainer:

            def work(num: int) -> None:
                for _ in range(num):
                    trainer.step(whole, targets)

            yield work, worker_ids(deployment)
        client.stop(deployment.id)


def main(steps: int = DEFAULT_STEPS) -> None:
    torch.set_num_threads(1)
    print(f"{steps} steps of {MICROBATCHES} microbatches, {ROWS} x {LENGTH} x {WIDTH}, {LAYERS} layers, 1F1B")
    print("| held | stage 0 | stage 1 |")
    print("|---|---|---|")
    for name, peer in {"torch pipelining": torch_pipelining, "deployed": deployed}.items():
        with peer() as (work, process_ids):
            for process_id in process_ids:
                Path(f"/proc/{process_id}/clear_refs").write_text(FORGET_PEAK)
            before = [peak_bytes(process_id) for process_id in process_ids]
            work(steps)
            held = [peak_bytes(one) - start for one, start in zip(process_ids, before, strict=True)]
        print(f"| {name} | " + " | ".join(map(_mebibytes, held)) + " |", flush=True)


def _mebibytes(size: int) -> str:
    return f"{size / (1 << 20):.0f} MiB"


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
