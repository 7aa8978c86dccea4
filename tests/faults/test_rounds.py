"""Deployments that come and go leave nothing behind: no process, descriptor, shared memory or row."""

from __future__ import annotations

import re
import sqlite3
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
import torch

from planner.client import PlannerClient, RecoveryPolicy, export
from planner.client.local_cluster import LocalCluster
from planner.plan.options import CutMode
from tests.faults.scale import MOST_SECONDS, scaled, tell
from tests.stage_daemon.control.daemons import SHAPES, two_layers
from tests.waiting import WAIT_SECONDS, wait_for

pytestmark = [pytest.mark.services, pytest.mark.slow, pytest.mark.timeout(MOST_SECONDS)]
MEBIBYTE = 2**20
NUM_ROUNDS = scaled(4, 1000)
# Until pools and caches have what they keep.
NUM_ROUNDS_BEFORE = scaled(2, 50)
# They are remembered for PLANNER_KEEP_DAYS.
REMEMBERED = frozenset({"request_ids"})


# Connections come and go by themselves.
SPARE_DESCRIPTORS = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Footprint:
    """Of a planner, its daemons and all that they started. `memory_bytes` is told, and not compared."""

    num_processes: int
    num_descriptors: int
    num_rows: int
    memory_bytes: int

    def is_within(self, other: Footprint) -> bool:
        return (
            self.num_processes <= other.num_processes
            and self.num_descriptors <= other.num_descriptors + SPARE_DESCRIPTORS
            and self.num_rows <= other.num_rows
        )


def test_deployments_leave_nothing_behind(tmp_path: Path) -> None:
    with (
        LocalCluster(
            data_dir=tmp_path, memory_bytes=(64 * MEBIBYTE,) * 2, environment={"OMP_NUM_THREADS": "1"}
        ) as cluster,
        PlannerClient(cluster.planner_address, timeout_seconds=WAIT_SECONDS) as client,
    ):
        module = two_layers()
        graph = client.submit(export(module, (torch.zeros(2, 8),), dynamic_shapes=SHAPES))
        plan_id = client.create_plan(graph.id, CutMode(module_paths=("first",))).id
        shared = come_and_go(cluster, client, plan_id, NUM_ROUNDS_BEFORE)
        before = footprint(cluster, tmp_path)
        shared |= come_and_go(cluster, client, plan_id, NUM_ROUNDS)
        wait_for(lambda: footprint(cluster, tmp_path).is_within(before), f"no more than {before}")
        after = footprint(cluster, tmp_path)
        assert [one.name for one in Path("/dev/shm").iterdir() if inode(one) in shared] == []
    growth = after.memory_bytes / before.memory_bytes - 1
    tell(f"{NUM_ROUNDS} deployments came and went: {before}, then {after}; resident memory {growth:+.1%}")


def come_and_go(cluster: LocalCluster, client: PlannerClient, plan_id: str, count: int) -> set[int]:
    """Every other one with weights that its daemons keep for a next generation.

    Returns the inodes of their shared memory.
    """
    shared: set[int] = set()
    for index in range(count):
        recovery = RecoveryPolicy.RESTART if index % 2 else RecoveryPolicy.MANUAL
        deployment = client.deploy(plan_id, recovery=recovery)
        for process in processes(cluster):
            maps = Path(f"/proc/{process.pid}/maps").read_text()
            shared |= {int(inode_number) for inode_number in re.findall(r"(\d+) +/dev/shm/", maps)}
        client.stop(deployment.id)
        client.delete_deployment(deployment.id)
    return shared


def inode(path: Path) -> int:
    """0 where it is gone by now."""
    try:
        return path.stat().st_ino
    except FileNotFoundError:
        return 0


def processes(cluster: LocalCluster) -> list[psutil.Process]:
    assert cluster.planner is not None
    services = [psutil.Process(service.process_id) for service in (cluster.planner, *cluster.daemons.values())]
    return [one for service in services for one in (service, *service.children(recursive=True))]


def footprint(cluster: LocalCluster, folder: Path) -> Footprint:
    running = processes(cluster)
    return Footprint(
        num_processes=len(running),
        num_descriptors=sum(process.num_fds() for process in running),
        num_rows=num_rows(folder / "planner.db"),
        memory_bytes=sum(process.memory_info().rss for process in running),
    )


def num_rows(path: Path) -> int:
    with sqlite3.connect(path) as database:
        tables = {name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        counts = (database.execute(f'SELECT count(*) FROM "{name}"').fetchone()[0] for name in tables - REMEMBERED)
        return sum(counts)
