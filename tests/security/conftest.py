"""A planner and two daemons as processes that speak mutual TLS, shared by the tests of this folder."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch

from access.channels import open_channel
from access.files import TlsFiles, WatchedCredentials
from planner.client import PlannerClient, export
from planner.client.local_cluster import LocalCluster
from planner.client.records import Deployment
from planner.plan.options import CutMode
from protos.v1 import stage_daemon_pb2_grpc
from tests.access.certificates import Certificates, environment
from tests.stage_daemon.control.daemons import SHAPES, two_layers
from tests.waiting import WAIT_SECONDS

MEBIBYTE = 2**20
MOST_SESSIONS = 8
METRICS = ("--metrics-listen", "127.0.0.1:0")
Stub = Callable[[str, TlsFiles | None], Any]


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates.of(tmp_path_factory.mktemp("tls") / "authority")


@pytest.fixture(scope="session")
def user(certificates: Certificates) -> TlsFiles:
    """What a client has."""
    return certificates.issue("client")


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory, certificates: Certificates) -> Iterator[LocalCluster]:
    revoked = certificates.revoke()
    with LocalCluster(
        data_dir=tmp_path_factory.mktemp("cluster"),
        memory_bytes=(64 * MEBIBYTE, 96 * MEBIBYTE),
        planner_arguments=("--lease-seconds", str(WAIT_SECONDS), *METRICS),
        daemon_arguments=METRICS,
        environment={
            "OMP_NUM_THREADS": "1",
            "STAGE_DAEMON_MAX_SESSIONS_PER_CALLER": str(MOST_SESSIONS),
            **environment("PLANNER", replace(certificates.issue("planner"), revoked=revoked)),
            **environment("STAGE_DAEMON", replace(certificates.issue("daemon"), revoked=revoked)),
        },
    ) as running:
        yield running


@pytest.fixture
def client(cluster: LocalCluster, user: TlsFiles) -> Iterator[PlannerClient]:
    with PlannerClient(cluster.planner_address, timeout_seconds=WAIT_SECONDS, tls=user) as connected:
        yield connected


@pytest.fixture(scope="session")
def deployment(cluster: LocalCluster, user: TlsFiles) -> Iterator[Deployment]:
    """TwoLayers, a stage on each device."""
    with PlannerClient(cluster.planner_address, timeout_seconds=WAIT_SECONDS, tls=user) as client:
        graph = client.submit(export(two_layers(), (torch.zeros(2, 8),), dynamic_shapes=SHAPES))
        plan = client.create_plan(graph.id, CutMode(module_paths=("first",)))
        deployed = client.deploy(plan.id)
        yield deployed
        client.stop(deployed.id)


@pytest.fixture
def daemon_stub() -> Iterator[Stub]:
    """By address and the caller's files."""
    channels: list[Any] = []

    def connect(address: str, files: TlsFiles | None) -> Any:
        channels.append(open_channel(address, WatchedCredentials(files) if files else None))
        return stage_daemon_pb2_grpc.StageDaemonServiceStub(channels[-1])

    yield connect
    for channel in channels:
        channel.close()
