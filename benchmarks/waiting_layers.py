"""Layers that only wait, daemons that run them, and how long their steps take: for many stages on few cores."""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import torch
from torch import nn

from benchmarks.naps import MODULE, NAP, nap
from planner.client import PlannerClient, export
from planner.client.local_cluster import LocalCluster
from planner.client.records import GraphRecord
from planner.cost.inventory import Inventory
from planner.plan.options import SingleMode

ROOT = Path(__file__).parents[1]
STEPS = 8


class Layer(nn.Module):
    """A forward pass waits for so many seconds, and a backward one for twice as long."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.seconds, self.weight = seconds, nn.Parameter(torch.ones(8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nap(x * self.weight, self.seconds)


class Layers(nn.Module):
    def __init__(self, count: int, seconds: float) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer(seconds) for _ in range(count))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return x.mean()


def arguments_of(description: str | None) -> tuple[float, int]:
    """Seconds of a layer, and microbatches, as the command line gives them."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--milliseconds", type=float, default=12.0, help="of a layer's forward pass")
    parser.add_argument("--microbatches", type=int, default=4)
    arguments = parser.parse_args()
    return arguments.milliseconds / 1e3, arguments.microbatches


@contextmanager
def waiting_daemons(
    num_daemons: int, memory_bytes: int | None = 1 << 30
) -> Iterator[tuple[LocalCluster, PlannerClient]]:
    """That know the operator, and offer so many bytes each, None: what they find. All ends with the block, and so do
    the files."""
    with (
        tempfile.TemporaryDirectory(prefix="planner-") as folder,
        LocalCluster(
            data_dir=Path(folder),
            memory_bytes=[memory_bytes] * num_daemons,
            daemon_arguments=("--custom-operators", f"{MODULE}={NAP}"),
            environment={"PYTHONPATH": str(ROOT)},
        ) as cluster,
        PlannerClient(cluster.planner_address) as client,
    ):
        yield cluster, client


def submitted(client: PlannerClient, module: nn.Module) -> GraphRecord:
    """For training, with batches of 1 to 64 rows of 8."""
    batch = torch.export.Dim("batch", min=1, max=64)
    return client.submit(export(module.train(), (torch.zeros(2, 8),), dynamic_shapes={"x": {0: batch}}))


def profiled_inventory(cluster: LocalCluster, client: PlannerClient, graph_id: str) -> Inventory:
    """Whose plans of the graph know its measured seconds. Who waits does so beside others: no core is divided."""
    client.profile_graph(graph_id, device_ids=[cluster.device_id(0)], backward=True)
    inventory = client.create_plan(graph_id, SingleMode()).inventory
    return replace(inventory, devices=tuple(replace(one, shares_cores=False) for one in inventory.devices))


def median_step(client: PlannerClient, plan_id: str, microbatches: int) -> float:
    """Seconds of a step, deployed for it."""
    deployment = client.deploy(plan_id)
    taken = []
    with client.train(deployment.id, "sgd:lr=1e-9") as trainer:
        for _ in range(STEPS + 1):
            started = time.monotonic()
            trainer.step(torch.zeros(2 * microbatches, 8))
            taken.append(time.monotonic() - started)
    client.stop(deployment.id)
    return statistics.median(taken[1:])
