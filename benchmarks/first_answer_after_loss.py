"""How long a stream waits where the daemon of one of three devices is killed, with `replan` and a plan made ahead.

    python -m benchmarks.first_answer_after_loss [MiB of weights] [kills]

Beside it, in the same run: how long the first rollout took, for which every worker reads its weights; and where the
time went, by the deployment's events. A daemon that was killed is started again before the next kill, which waits until
there is a plan for the loss of each device.
"""

from __future__ import annotations

import random
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import torch

from planner.client import PlannerClient, RecoveryPolicy, export
from planner.client.local_cluster import LocalCluster
from planner.client.records import Deployment, DeploymentState
from planner.plan.options import CutMode
from tests.faults.streams import wait_until_planned_ahead, wait_until_ready

DEFAULT_MEBIBYTES, DEFAULT_KILLS = 192, 20
WIDTH, NUM_DEVICES, SEED = 1024, 3, 1
MEBIBYTE = 1 << 20
PATIENCE_SECONDS = 240.0
# What has happened by the first event of each of these states after the kill.
PHASES = {
    DeploymentState.RECOVERING: "noticed",
    DeploymentState.LOADING: "placed",
    DeploymentState.CONNECTING: "loaded",
    DeploymentState.READY: "connected",
}


class Layers(torch.nn.Module):
    def __init__(self, num_layers: int) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(num_layers))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = torch.relu(layer(x))
        return x


def main(mebibytes: int = DEFAULT_MEBIBYTES, num_kills: int = DEFAULT_KILLS) -> None:
    torch.set_num_threads(1)
    moments = random.Random(SEED)
    num_layers = max(NUM_DEVICES, mebibytes * MEBIBYTE // (4 * WIDTH * WIDTH))
    module = Layers(num_layers).eval()
    cuts = tuple(f"layers.{device * num_layers // NUM_DEVICES - 1}" for device in range(1, NUM_DEVICES))
    with (
        tempfile.TemporaryDirectory(prefix="planner-") as folder,
        LocalCluster(
            data_dir=Path(folder),
            memory_bytes=(4 * mebibytes * MEBIBYTE,) * NUM_DEVICES,
            environment={"OMP_NUM_THREADS": "1"},
        ) as cluster,
        PlannerClient(cluster.planner_address, timeout_seconds=PATIENCE_SECONDS) as client,
    ):
        graph = client.submit(export(module, (torch.zeros(2, WIDTH),)))
        plan = client.create_plan(graph.id, CutMode(module_paths=cuts))
        began = time.monotonic()
        deployment = client.deploy(plan.id, recovery=RecoveryPolicy.REPLAN)
        rollout_seconds = time.monotonic() - began
        print(f"{num_layers * 4 * WIDTH * WIDTH / MEBIBYTE:.0f} MiB; first rollout {rollout_seconds:.2f} s", flush=True)
        waits: list[dict[str, float]] = []
        for generation in range(1, num_kills + 1):
            wait_until_ready(client, deployment.id, generation)
            deployment = client.get_deployment(deployment.id)
            wait_until_planned_ahead(Path(folder), deployment)
            lost = moments.choice(deployment.stages).device_id
            waits.append(_wait_of(cluster, client, deployment, lost, module))
            phases = ", ".join(f"{phase} {seconds:.2f}" for phase, seconds in waits[-1].items())
            print(f"{lost} was killed: {phases}", flush=True)
        client.stop(deployment.id)
    for phase in waits[0]:
        seconds = sorted(wait[phase] for wait in waits)
        p50, p95 = statistics.median(seconds), seconds[round(0.95 * (num_kills - 1))]
        print(f"{phase:<10} p50 {p50:.2f} s, p95 {p95:.2f} s, most {seconds[-1]:.2f} s")
    print(f"the p50 of the answer is {p50 / rollout_seconds:.2f} of the first rollout")


def _wait_of(
    cluster: LocalCluster, client: PlannerClient, deployment: Deployment, lost: str, module: torch.nn.Module
) -> dict[str, float]:
    """Seconds from the kill to each phase, and to the answer after it."""
    killed_at, batch = 0.0, torch.randn(2, WIDTH)

    def batches() -> Iterator[torch.Tensor]:
        nonlocal killed_at
        for _ in range(3):
            yield batch
        killed_at = time.time()
        cluster.daemons[lost].kill()
        yield batch

    with client.pipeline(deployment.id, deadline_seconds=PATIENCE_SECONDS) as pipeline, torch.no_grad():
        answers = list(pipeline.run(batches()))
    answered_at = time.time()
    assert all(torch.equal(answer, module(batch)) for answer in answers)
    cluster.start_daemon(list(cluster.daemons).index(lost))
    reached: dict[str, float] = {}
    for event in client.watch(deployment.id):
        seconds = event.occurred_at.timestamp() - killed_at
        if seconds >= 0 and event.state in PHASES:
            reached.setdefault(PHASES[event.state], seconds)
            if event.state is DeploymentState.READY:
                break
    return {**reached, "answered": answered_at - killed_at}


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
