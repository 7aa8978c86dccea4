"""Training steps of few microbatches over stages that are equal or not, of layers that only wait; measured and planned.

    python -m benchmarks.uneven_stages [--milliseconds 12]

Six daemons, 36 layers, four microbatches under 1F1B. A row gives the layers of each stage, the median step, and the
seconds that a plan of such stages would say, messages apart. Stages wait, so that two cores are enough for all of them.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path

import torch
from torch import nn

from benchmarks.naps import MODULE, NAP, nap
from planner.client import PlannerClient, export
from planner.client.local_cluster import LocalCluster
from planner.partition.objective import PipelineSchedule, Training
from planner.partition.training.named_orders import device_orders
from planner.partition.training.step_graph import StageSeconds, TrainingStep
from planner.partition.training.step_time import step_seconds
from planner.plan.options import CutMode, PlanOptions

ROOT = Path(__file__).parents[1]
STAGES, MICROBATCHES, STEPS = 6, 4, 8
SIZES = ([6, 6, 6, 6, 6, 6], [7, 7, 7, 5, 5, 5], [5, 5, 5, 7, 7, 7])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--milliseconds", type=float, default=12.0, help="of a layer's forward pass")
    seconds = parser.parse_args().milliseconds / 1e3
    batch = torch.export.Dim("batch", min=1, max=64)
    with (
        tempfile.TemporaryDirectory() as folder,
        LocalCluster(
            data_dir=Path(folder),
            memory_bytes=[None] * STAGES,
            daemon_arguments=("--custom-operators", f"{MODULE}={NAP}"),
            environment={"PYTHONPATH": str(ROOT)},
        ) as cluster,
        PlannerClient(cluster.planner_address) as client,
    ):
        module = Layers(sum(SIZES[0]), seconds).train()
        graph = client.submit(export(module, (torch.zeros(2, 8),), dynamic_shapes={"x": {0: batch}}))
        print(f"{'layers of each stage':<24}{'step, ms':>10}{'planned':>10}")
        for sizes in SIZES:
            measured, planned = _measured(client, graph.id, sizes), _planned(sizes, seconds)
            print(f"{' '.join(map(str, sizes)):<24}{measured * 1e3:>10.0f}{planned * 1e3:>10.0f}", flush=True)


class Layers(nn.Module):
    def __init__(self, count: int, seconds: float) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer(seconds) for _ in range(count))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return x.mean()


class Layer(nn.Module):
    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.seconds, self.weight = seconds, nn.Parameter(torch.ones(8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nap(x * self.weight, self.seconds)


def _measured(client: PlannerClient, graph_id: str, sizes: Sequence[int]) -> float:
    cuts = tuple(f"layers.{end - 1}" for end in accumulate(sizes[:-1]))
    options = PlanOptions(mode=CutMode(module_paths=cuts), training=Training(microbatches=MICROBATCHES))
    return median_step(client, client.create_plan(graph_id, options).id, MICROBATCHES)


def median_step(client: PlannerClient, plan_id: str, microbatches: int) -> float:
    """Seconds of a step of `Layers`, deployed for it."""
    deployment = client.deploy(plan_id)
    taken = []
    with client.train(deployment.id, "sgd:lr=1e-9") as trainer:
        for _ in range(STEPS + 1):
            started = time.monotonic()
            trainer.step(torch.zeros(2 * microbatches, 8))
            taken.append(time.monotonic() - started)
    client.stop(deployment.id)
    return statistics.median(taken[1:])


def _planned(sizes: Sequence[int], seconds: float) -> float:
    stages = tuple(
        StageSeconds(
            forward=size * seconds,
            backward=2 * size * seconds,
            received=0.0,
            sent=0.0,
            gradients_received=0.0,
            gradients_sent=0.0,
        )
        for size in sizes
    )
    edges = tuple((stage, stage + 1) for stage in range(len(sizes) - 1))
    copies = tuple((stage,) for stage in range(len(sizes)))
    step = TrainingStep(copies=copies, stages=stages, edges=edges, gradient_edges=edges, microbatches=MICROBATCHES)
    return step_seconds(step, device_orders(PipelineSchedule.ONE_F_ONE_B, MICROBATCHES, copies))


if __name__ == "__main__":
    main()
