"""A planner whose disk fills up: the call at hand is refused, nothing else ends, and it goes on once there is room."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import pytest
import torch

from planner.client import PlannerClient, export
from planner.client.local_cluster import ServiceProcess
from planner.client.records import DeploymentState
from planner.cost.inventory import Device, Inventory
from planner.errors import ResourceExhausted
from planner.plan.options import SingleMode
from tests.contract.postgresql import PostgreSql
from tests.stage_daemon.control.daemons import SHAPES, two_layers
from tests.waiting import WAIT_SECONDS, wait_for

DISK = "size=16m"
# A mount that nobody else sees, as whoever may make one: root, or root of a namespace of one's own.
UNSHARE = shutil.which("unshare") or "no unshare"
APART = (UNSHARE, "--mount") if os.geteuid() == 0 else (UNSHARE, "--map-root-user", "--mount")
MOUNTED = f'mount -t tmpfs -o {DISK} none "$0" && exec "$@"'
ROOT_ALONE = pytest.mark.skipif(os.geteuid() != 0, reason="only root makes disks for a server of another user")
INVENTORY = Inventory(devices=(Device(id="elsewhere", kind="cpu", host="host", memory_bytes=1 << 30),))
LARGE_INVENTORY = Inventory(
    devices=tuple(
        Device(id=f"elsewhere/{index}", kind="cpu", host="host", memory_bytes=1 << 30) for index in range(200)
    )
)


def can_mount(folder: Path) -> bool:
    try:
        return subprocess.run([*APART, "sh", "-c", MOUNTED, folder, "true"], capture_output=True).returncode == 0
    except OSError:
        return False


pytestmark = [
    pytest.mark.services,
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(not can_mount(Path("/tmp")), reason="no disk can be mounted here"),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class OnSmallDisk:
    """A planner, and the process that sees the disk at `folder`."""

    planner: ServiceProcess
    process_id: int
    folder: Path

    @contextmanager
    def full(self) -> Iterator[None]:
        """The disk has no byte left until the block ends."""
        ballast = Path(f"/proc/{self.process_id}/root{self.folder}/ballast")
        try:
            with ballast.open("wb", buffering=0) as file, pytest.raises(OSError, match="No space left"):
                fill(file)
            yield
        finally:
            ballast.unlink()


@contextmanager
def with_sqlite(folder: Path) -> Iterator[OnSmallDisk]:
    """Its data folder, with its blobs, is a disk of its own."""
    disk = folder / "disk"
    disk.mkdir()
    service = ServiceProcess([*APART, "sh", "-c", MOUNTED, str(disk), *command(disk)], folder / "planner.log")
    with running(service):
        yield OnSmallDisk(planner=service, process_id=service.process_id, folder=disk)


@contextmanager
def with_postgresql(folder: Path) -> Iterator[OnSmallDisk]:
    """Of its database the tables are on a disk of their own, and PostgreSQL's log is not."""
    # Under /tmp, which PostgreSQL's user may enter, as it may not the folders of tests.
    with tempfile.TemporaryDirectory(dir="/tmp") as above:
        Path(above).chmod(0o755)
        disk = Path(above) / "disk"
        disk.mkdir()
        server = PostgreSql(small_disk=disk)
        try:
            server.execute(f"CREATE TABLESPACE small LOCATION '{disk}'")
            server.execute("CREATE DATABASE planner TABLESPACE small")
            environment = {"PLANNER_DATABASE_URL": server.url("planner")}
            with running(ServiceProcess(command(folder / "data"), folder / "planner.log", environment)) as service:
                yield OnSmallDisk(planner=service, process_id=server.process_id, folder=disk)
        finally:
            server.stop()


def command(data: Path) -> list[str]:
    return [sys.executable, "-m", "planner", "--listen", "127.0.0.1:0", "--data-dir", str(data)]


@contextmanager
def running(service: ServiceProcess) -> Iterator[ServiceProcess]:
    service.wait_until_ready()
    try:
        yield service
    finally:
        service.stop()


@pytest.fixture(params=[with_sqlite, pytest.param(with_postgresql, marks=ROOT_ALONE)])
def small(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[OnSmallDisk]:
    with request.param(tmp_path) as on_disk:
        yield on_disk


@pytest.fixture
def daemon(tmp_path: Path, small: OnSmallDisk) -> Iterator[ServiceProcess]:
    command = [sys.executable, "-m", "stage_daemon", "--device", "cpu", "--device-id", "local/cpu0"]
    command += ["--planner", small.planner.address, "--listen", "127.0.0.1:0", "--memory", "64MiB"]
    with running(ServiceProcess(command, tmp_path / "daemon.log", {"OMP_NUM_THREADS": "1"})) as service:
        yield service


def fill(file: IO[bytes]) -> None:
    while True:
        file.write(bytes(4096))


def create_inventories(client: PlannerClient) -> None:
    """More than what the files of a database have left can take."""
    for _ in range(10_000):
        client.create_inventory(LARGE_INVENTORY)


@pytest.mark.usefixtures("daemon")
def test_a_full_disk_refuses_the_call_at_hand_and_ends_nothing(small: OnSmallDisk) -> None:
    module, batch = two_layers(), torch.randn(3, 8)
    has_blobs = small.process_id == small.planner.process_id
    with PlannerClient(small.planner.address, timeout_seconds=WAIT_SECONDS) as client, torch.no_grad():
        graph = client.submit(export(module, (torch.zeros(2, 8),), dynamic_shapes=SHAPES))
        plan = client.create_plan(graph.id, SingleMode())
        deployment = client.deploy(plan.id)
        with client.pipeline(deployment.id, deadline_seconds=WAIT_SECONDS) as pipeline:
            with small.full():
                with pytest.raises(ResourceExhausted, match="free space there"):
                    create_inventories(client)
                if has_blobs:
                    with pytest.raises(ResourceExhausted, match="free space there"):
                        client.submit(export(torch.nn.Linear(700, 700), (torch.zeros(2, 700),)))
                assert client.get_graph(graph.id).id == graph.id
                assert [summary.id for summary in client.list_plans()] == [plan.id]
                assert torch.equal(pipeline(batch), module(batch))
            client.create_inventory(INVENTORY)
            wait_for(client.list_devices, "the daemon's lease to be written")
            assert torch.equal(pipeline(batch), module(batch))
        deployment_now = client.get_deployment(deployment.id)
        assert (deployment_now.state, deployment_now.generation) == (DeploymentState.READY, 1)
        assert client.create_plan(graph.id, SingleMode(), inventory=INVENTORY).stages
        assert client.stop(deployment.id).state is DeploymentState.STOPPED
    assert small.planner.exit_status is None
