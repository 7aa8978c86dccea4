"""Workers and daemons killed in the middle of a stream: it goes on, and each batch has its answer once, bit for bit.

tests/stage_daemon/control/test_deaths.py has a little of it for `make test`.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from planner.client import PlannerClient, RecoveryPolicy, export
from planner.client.local_cluster import LocalCluster
from planner.plan.options import CutMode
from tests.faults.scale import IS_SOAK, random_moments
from tests.faults.streams import stream_under_kills
from tests.stage_daemon.control.daemons import SHAPES, two_layers
from tests.waiting import WAIT_SECONDS

pytestmark = [
    pytest.mark.services,
    pytest.mark.slow,
    pytest.mark.timeout(7200),
    pytest.mark.skipif(not IS_SOAK, reason="make soak"),
]
MEBIBYTE = 2**20
NUM_BATCHES = 10_000
KILLS = ("worker", "daemon") * 50


@pytest.mark.parametrize(("recovery", "num_devices"), [(RecoveryPolicy.RESTART, 2), (RecoveryPolicy.REPLAN, 3)])
def test_each_batch_is_answered_once_and_right(tmp_path: Path, recovery: RecoveryPolicy, num_devices: int) -> None:
    environment = {"OMP_NUM_THREADS": "1"}
    with (
        LocalCluster(
            data_dir=tmp_path, memory_bytes=(64 * MEBIBYTE,) * num_devices, environment=environment
        ) as cluster,
        PlannerClient(cluster.planner_address, timeout_seconds=WAIT_SECONDS) as client,
    ):
        module = two_layers()
        graph = client.submit(export(module, (torch.zeros(2, 8),), dynamic_shapes=SHAPES))
        plan = client.create_plan(graph.id, CutMode(module_paths=("first",)))
        waits = stream_under_kills(
            cluster,
            client,
            plan.id,
            module,
            kills=KILLS,
            num_batches=NUM_BATCHES,
            moments=random_moments(),
            recovery=recovery,
        )
    in_order = sorted(waits)
    p95 = in_order[int(0.95 * (len(in_order) - 1))]
    print(f"{recovery.value}: {len(KILLS)} kills, {NUM_BATCHES} batches")
    print(f"first answer after a kill: p95 {p95:.1f} s, longest {in_order[-1]:.1f} s")
