"""A planner-server without daemons, as a process, shared by this folder's tests; and one that answers by a script."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from planner.client import PlannerClient
from planner.client.connection import Connection
from planner.client.local_cluster import LocalCluster
from tests.planner.client.scripted_planner import ScriptedPlanner, scripted_planner
from tests.waiting import WAIT_SECONDS


@pytest.fixture(scope="session")
def server_address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    data_dir: Path = tmp_path_factory.mktemp("planner")
    with LocalCluster(data_dir=data_dir, memory_bytes=()) as cluster:
        yield cluster.planner_address


@pytest.fixture
def client(server_address: str) -> Iterator[PlannerClient]:
    with PlannerClient(server_address, timeout_seconds=WAIT_SECONDS) as connected:
        yield connected


@pytest.fixture
def scripted() -> Iterator[tuple[ScriptedPlanner, PlannerClient]]:
    """A script, and a client of the server that keeps to it."""
    with (
        scripted_planner() as (script, address),
        PlannerClient(address, timeout_seconds=WAIT_SECONDS, restart_seconds=1.0) as client,
    ):
        yield script, client


@pytest.fixture
def scripted_connection() -> Iterator[tuple[ScriptedPlanner, Connection]]:
    with scripted_planner() as (script, address):
        connection = Connection(address, timeout_seconds=WAIT_SECONDS)
        yield script, connection
        connection.close()
