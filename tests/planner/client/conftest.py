"""A planner-server without daemons, as a process, shared by the tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from planner.client import PlannerClient
from planner.client.local_cluster import LocalCluster


@pytest.fixture(scope="module")
def server_address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    data_dir: Path = tmp_path_factory.mktemp("planner")
    with LocalCluster(data_dir=data_dir, memory_bytes=()) as cluster:
        yield cluster.planner_address


@pytest.fixture
def client(server_address: str) -> Iterator[PlannerClient]:
    with PlannerClient(server_address) as connected:
        yield connected
