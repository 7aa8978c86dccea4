"""A planner and three CPU daemons as processes, shared by the tests of this folder that do not break them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from planner.client import PlannerClient
from planner.client.local_cluster import LocalCluster
from tests.waiting import WAIT_SECONDS

MEBIBYTE = 2**20


# Long enough on a machine with ten times more to do than it can.


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Sums depend on how many threads share them; the workers use as many as this process."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    data_dir: Path = tmp_path_factory.mktemp("cluster")
    memory = (768 * MEBIBYTE, 1024 * MEBIBYTE, 896 * MEBIBYTE)
    with LocalCluster(
        data_dir=data_dir,
        memory_bytes=memory,
        planner_arguments=("--lease-seconds", str(WAIT_SECONDS)),
        environment={"OMP_NUM_THREADS": "1"},
    ) as running:
        yield running


@pytest.fixture
def client(cluster: LocalCluster) -> Iterator[PlannerClient]:
    with PlannerClient(cluster.planner_address, timeout_seconds=WAIT_SECONDS) as connected:
        yield connected
