"""Training steps over daemons beside torch's own: right to the last digits of float64, and how long they take."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import nn
from torch.nn import functional

from benchmarks.gpu.bench import Bench, Layers, Row, shown
from benchmarks.training_matrix import measured
from planner.client import export
from planner.partition.objective import PipelineSchedule, Training
from planner.plan.options import BalancedMode, Mode, PlanOptions, SingleMode
from tests.builders.training_cases import drawn_training

# Sums have another order than on a CPU, where the peer is.
MOST_APART = 1e-9
NUM_DRAWN = 40
MICROBATCHES = 8
RATE = 1e-3


def trainings(bench: Bench) -> Iterator[Row]:
    """Models, cuts, schedules and sizes drawn at random, in float64, beside the unsplit step on a CPU.

    Without dropout, whose draws are the device's own.
    """
    seeds = (seed for seed in range(10 * NUM_DRAWN) if _is_comparable(seed))
    for _ in range(1 if bench.quick else NUM_DRAWN):
        drawn = drawn_training(next(seeds))
        row = measured(bench.client, drawn)
        if not row.is_refused:
            yield Row(
                suite="trainings",
                name=str(drawn),
                figure=row.failure or f"off by {row.difference:.1e}",
                is_right=row.difference < MOST_APART,
            )


def _is_comparable(seed: int) -> bool:
    drawn = drawn_training(seed)
    return drawn.is_double and not drawn.draws_random


class WithLoss(nn.Module):
    def __init__(self, rows: int, columns: int, num_layers: int) -> None:
        super().__init__()
        self.layers = Layers(rows, columns, num_layers)

    def forward(self, hidden: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return functional.mse_loss(self.layers(hidden), target)


def steps(bench: Bench) -> Iterator[Row]:
    """1F1B steps beside the same microbatches through the unsplit module: forward, back and SGD."""
    small, large = (64, 1024, 16), (512, 2048, 8)
    kinds: dict[str, tuple[tuple[int, int, int], Mode]] = {
        "one stage, small kernels": (small, SingleMode()),
        "one stage, large kernels": (large, SingleMode()),
        "two stages, small kernels": (small, BalancedMode(num_stages=2)),
        "two stages, large kernels": (large, BalancedMode(num_stages=2)),
    }
    if bench.quick:
        kinds = {"two stages": ((16, 64, 8), BalancedMode(num_stages=2))}
    for name, (sizes, mode) in kinds.items():
        yield _step(bench, name, WithLoss(*sizes), mode)


def _step(bench: Bench, name: str, module: WithLoss, mode: Mode) -> Row:
    sample = module.layers.sample
    batch = (sample.repeat(MICROBATCHES, 1), sample.repeat(MICROBATCHES, 1).flip(1))
    options = PlanOptions(
        mode=mode, training=Training(schedule=PipelineSchedule.ONE_F_ONE_B, microbatches=MICROBATCHES)
    )
    client = bench.client
    shape = {0: torch.export.Dim("rows", min=2, max=1 << 16)}
    graph = client.submit(export(module, (sample, sample), dynamic_shapes=(shape, shape)))
    deployment = client.deploy(client.create_plan(graph.id, options).id)
    with client.train(deployment.id, f"sgd:lr={RATE}") as trainer:
        module.to(bench.device)
        optimizer = torch.optim.SGD(module.parameters(), lr=RATE)

        def here() -> float:
            losses = []
            for part in zip(*(one.chunk(MICROBATCHES) for one in bench.put(batch)), strict=True):
                loss = module(*part) / MICROBATCHES
                loss.backward()
                losses.append(loss.detach())
            optimizer.step()
            optimizer.zero_grad()
            return float(sum(losses))

        first = trainer.step(*batch).loss, here()
        seconds, peer = bench.seconds_of_each([lambda: trainer.step(*batch), here])
    client.stop(deployment.id)
    return Row(
        suite="steps",
        name=name,
        figure=f"{shown(seconds)} a step",
        peer="unsplit",
        ratio=seconds / peer,
        is_right=abs(first[0] - first[1]) < 1e-3 * first[1],
    )
