"""What a training step holds and takes with activations kept and computed again: an encoder on two CPU daemons.

    python -m benchmarks.recomputed_activations [steps]

Held are the most bytes that each worker has had in memory beyond those before its first step. Steps of both alternate.
"""

from __future__ import annotations

import statistics
import sys
from pathlib import Path

import grpc
import torch
from torch import nn
from torch.nn import functional

from benchmarks.one_thread_daemons import one_thread_daemons
from planner.client import export
from planner.client.records import Deployment
from planner.client.training import Trainer
from planner.partition.objective import Activations, PipelineSchedule, Training
from planner.plan.options import BalancedMode, PlanOptions
from protos.v1 import stage_daemon_pb2, stage_daemon_pb2_grpc

WIDTH, LAYERS, ROWS, LENGTH, MICROBATCHES = 256, 4, 8, 128, 8
MEMORY_BYTES = 4 << 30


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, dropout=0.1, batch_first=True) for _ in range(LAYERS)
        )

    def forward(self, hidden: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            hidden = layer(hidden)
        return functional.mse_loss(hidden, target)


def main(steps: int = 5) -> None:
    torch.manual_seed(0)
    module = Encoder()
    inputs, targets = torch.randn(2, MICROBATCHES * ROWS, LENGTH, WIDTH).unbind(0)
    with one_thread_daemons(2, MEMORY_BYTES) as (cluster, client):
        graph = client.submit(export(module.train(), (inputs[:ROWS].clone(), targets[:ROWS].clone())))
        client.profile_graph(graph.id, device_ids=[cluster.device_id(0)], backward=True)
        trainers: dict[Activations, Trainer] = {}
        deployments: dict[Activations, Deployment] = {}
        before: dict[Activations, list[int]] = {}
        for activations in (Activations.KEPT, Activations.RECOMPUTED):
            training = Training(schedule=PipelineSchedule.GPIPE, microbatches=MICROBATCHES, activations=activations)
            plan = client.create_plan(graph.id, PlanOptions(mode=BalancedMode(num_stages=2), training=training))
            deployments[activations] = client.deploy(plan.id)
            trainers[activations] = client.train(deployments[activations].id, "sgd:lr=0.01", seed="one")
            before[activations] = _most_bytes(deployments[activations])
        results = [{one: trainer.step(inputs, targets) for one, trainer in trainers.items()} for _ in range(steps)]
        print(f"{steps} steps of {MICROBATCHES} microbatches, {ROWS} x {LENGTH} x {WIDTH}, {LAYERS} layers, gpipe")
        print("| activations | stage | planned for a step | held | median step | losses |")
        for activations, deployment in deployments.items():
            seconds = statistics.median(result[activations].seconds for result in results)
            same = all(result[activations].losses == result[Activations.KEPT].losses for result in results)
            stages = client.get_plan(deployment.plan_id).stages
            for stage, start, most in zip(stages, before[activations], _most_bytes(deployment), strict=True):
                planned = stage.memory.saved_bytes + stage.memory.activation_bytes
                cells = [activations.value, stage.index, _mebibytes(planned), _mebibytes(most - start)]
                print(
                    "| " + " | ".join(map(str, [*cells, f"{seconds:.2f} s", "the same" if same else "others"])) + " |"
                )
        for activations, trainer in trainers.items():
            trainer.close()
            client.stop(deployments[activations].id)


def _most_bytes(deployment: Deployment) -> list[int]:
    """By stage: the most that its worker has had in memory."""
    return [peak_bytes(process_id) for process_id in worker_ids(deployment)]


def worker_ids(deployment: Deployment) -> list[int]:
    """By stage: the process that runs it."""
    return [_worker_id(deployment, stage.daemon_address) for stage in deployment.stages]


def _worker_id(deployment: Deployment, address: str) -> int:
    with grpc.insecure_channel(address) as channel:
        status = stage_daemon_pb2_grpc.StageDaemonServiceStub(channel).GetDaemonStatus(
            stage_daemon_pb2.GetDaemonStatusRequest()
        )
    return next(one.worker_process_id for one in status.stages if one.deployment_id == deployment.id)


def peak_bytes(process_id: int) -> int:
    """The most that it has had in memory."""
    lines = Path(f"/proc/{process_id}/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM"))


def _mebibytes(size: int) -> str:
    return f"{size / (1 << 20):.0f} MiB"


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
