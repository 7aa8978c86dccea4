"""A planner with a short lease and two CPU daemons, as processes of this test's own: tests here break them."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import grpc
import pytest
import torch

from planner.client import PlannerClient, export
from planner.client.local_cluster import LocalCluster
from planner.client.records import Deployment, StoredPlan
from planner.plan.options import CutMode
from protos.v1 import stage_daemon_pb2_grpc

LEASE_SECONDS = 4.0
MEBIBYTE = 2**20


class TwoLayers(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(8, 8)
        self.second = torch.nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(torch.relu(self.first(x)))


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with LocalCluster(
        data_dir=tmp_path_factory.mktemp("cluster"),
        memory_bytes=(64 * MEBIBYTE, 96 * MEBIBYTE),
        planner_arguments=("--lease-seconds", str(LEASE_SECONDS)),
        environment={"OMP_NUM_THREADS": "1"},
    ) as running:
        yield running


@pytest.fixture
def client(cluster: LocalCluster) -> Iterator[PlannerClient]:
    with PlannerClient(cluster.planner_address) as connected:
        yield connected


@pytest.fixture(scope="module")
def module() -> torch.nn.Module:
    torch.manual_seed(0)
    return TwoLayers().eval()


@pytest.fixture(scope="module")
def plan(cluster: LocalCluster, module: torch.nn.Module) -> StoredPlan:
    """Two stages, one on each device."""
    shapes = {"x": {0: torch.export.Dim("batch", min=1, max=64)}}
    with PlannerClient(cluster.planner_address) as client:
        graph = client.submit(export(module, (torch.zeros(2, 8),), dynamic_shapes=shapes))
        found = client.create_plan(graph.id, CutMode(module_paths=("first",)))
    assert len(found.stages) == 2
    return found


@pytest.fixture
def deployment(client: PlannerClient, plan: StoredPlan) -> Iterator[Deployment]:
    deployment = client.deploy(plan.id)
    yield deployment
    client.stop(deployment.id)


@pytest.fixture
def stub(cluster: LocalCluster) -> Iterator[Callable[[str], stage_daemon_pb2_grpc.StageDaemonServiceStub]]:
    """By address."""
    channels: list[grpc.Channel] = []

    def connect(address: str) -> stage_daemon_pb2_grpc.StageDaemonServiceStub:
        channels.append(grpc.insecure_channel(address))
        return stage_daemon_pb2_grpc.StageDaemonServiceStub(channels[-1])

    yield connect
    for channel in channels:
        channel.close()
