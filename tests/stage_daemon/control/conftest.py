"""A planner and two CPU daemons as processes of this folder's own: tests here break them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from planner.client import PlannerClient, export
from planner.client.local_cluster import LocalCluster
from planner.client.records import StoredPlan
from planner.plan.options import CutMode
from tests.stage_daemon.control.daemons import SHAPES, two_layers
from tests.waiting import WAIT_SECONDS, wait_for

MEBIBYTE = 2**20


@pytest.fixture(scope="module")
def cluster_of_module(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """With leases that no loaded machine lets run out: deaths are noticed in other ways."""
    with LocalCluster(
        data_dir=tmp_path_factory.mktemp("cluster"),
        memory_bytes=(64 * MEBIBYTE, 96 * MEBIBYTE),
        planner_arguments=("--lease-seconds", str(WAIT_SECONDS)),
        environment={"OMP_NUM_THREADS": "1"},
    ) as running:
        yield running


@pytest.fixture
def cluster(cluster_of_module: LocalCluster) -> LocalCluster:
    """Whole again, whatever the test before has killed."""
    assert cluster_of_module.planner is not None
    if cluster_of_module.planner.exit_status is not None:
        cluster_of_module.start_planner()
    for index in range(2):
        if cluster_of_module.daemons[cluster_of_module.device_id(index)].exit_status is not None:
            cluster_of_module.start_daemon(index)
    with PlannerClient(cluster_of_module.planner_address, timeout_seconds=WAIT_SECONDS) as connected:
        wait_for(lambda: len(connected.list_devices()) == 2, "both daemons to be heard")
    return cluster_of_module


@pytest.fixture
def client(cluster: LocalCluster) -> Iterator[PlannerClient]:
    with PlannerClient(cluster.planner_address, timeout_seconds=WAIT_SECONDS) as connected:
        yield connected


@pytest.fixture(scope="module")
def module() -> torch.nn.Module:
    return two_layers()


@pytest.fixture(scope="module")
def plan(cluster_of_module: LocalCluster, module: torch.nn.Module) -> StoredPlan:
    """Two stages, one on each device."""
    with PlannerClient(cluster_of_module.planner_address, timeout_seconds=WAIT_SECONDS) as client:
        graph = client.submit(export(module, (torch.zeros(2, 8),), dynamic_shapes=SHAPES))
        plan = client.create_plan(graph.id, CutMode(module_paths=("first",)))
    assert len(plan.stages) == 2
    return plan
