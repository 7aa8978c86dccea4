"""Two daemons that take themselves for two hosts: what their workers send each other cannot be read on the way."""

from __future__ import annotations

import os
import secrets
import shutil
import socket
import sys
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from torch import nn

from access.files import TlsFiles
from planner.client import PlannerClient, export
from planner.client.local_cluster import LocalCluster, ServiceProcess
from planner.plan.options import CutMode
from tests.access.certificates import Certificates, environment
from tests.waiting import WAIT_SECONDS, wait_for

pytestmark = [
    pytest.mark.services,
    pytest.mark.slow,
    pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("unshare"), reason="reads all packets of the loopback"),
]

MEBIBYTE = 2**20
UNSHARE = shutil.which("unshare") or ""
NUM_MICROBATCHES = 20


class Watch:
    """Whether some bytes have crossed the loopback."""

    def __init__(self, expected: bytes) -> None:
        self.seen = threading.Event()
        self._wanted = expected
        self._socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.ntohs(3))
        self._socket.bind(("lo", 0))
        threading.Thread(target=self._look, daemon=True).start()

    def _look(self) -> None:
        while True:
            if self._wanted in self._socket.recv(1 << 17):
                self.seen.set()


def elsewhere(command: list[str], folder: Path) -> list[str]:
    """The command on a host of its own, as far as it can tell: the boot id is another."""
    boot_id = folder / "boot_id"
    boot_id.write_text(f"{uuid.uuid4()}\n")
    script = 'mount --bind "$0" /proc/sys/kernel/random/boot_id && exec "$@"'
    return [UNSHARE, "--mount", "sh", "-c", script, str(boot_id), *command]


@contextmanager
def two_hosts(folder: Path, certificates: Certificates) -> Iterator[LocalCluster]:
    variables = {
        "OMP_NUM_THREADS": "1",
        **environment("PLANNER", certificates.issue("planner")),
        **environment("STAGE_DAEMON", certificates.issue("daemon")),
    }
    with LocalCluster(
        data_dir=folder / "cluster",
        memory_bytes=(64 * MEBIBYTE,),
        planner_arguments=("--lease-seconds", str(WAIT_SECONDS)),
        environment=variables,
    ) as cluster:
        command = [sys.executable, "-m", "stage_daemon", "--device", "cpu", "--device-id", "elsewhere/cpu0"]
        command += ["--planner", cluster.planner_address, "--memory", str(64 * MEBIBYTE)]
        daemon = ServiceProcess(elsewhere(command, folder), folder / "elsewhere.log", variables)
        try:
            daemon.wait_until_ready()
            yield cluster
        finally:
            daemon.stop()


class Passing(nn.Module):
    """Between the two stages positive inputs are as they came."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.ReLU()
        self.second = nn.Linear(256, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(x))


def test_activations_between_hosts_are_encrypted(tmp_path: Path, certificates: Certificates, user: TlsFiles) -> None:
    # Of its own: another suite on this machine sends its input in plain text too.
    torch.manual_seed(secrets.randbits(63))
    module, x = Passing().eval(), torch.rand(16, 256)
    watch = Watch(x.numpy().tobytes()[512:576])
    with (
        two_hosts(tmp_path, certificates) as cluster,
        PlannerClient(cluster.planner_address, timeout_seconds=WAIT_SECONDS, tls=user) as client,
    ):
        graph = client.submit(export(module, (x,)))
        plan = client.create_plan(graph.id, CutMode(module_paths=("first",)))
        deployment = client.deploy(plan.id)
        assert {stage.device_id for stage in deployment.stages} == {"local/cpu0", "elsewhere/cpu0"}
        with client.pipeline(deployment.id) as pipeline:
            for _ in range(NUM_MICROBATCHES):
                assert torch.equal(pipeline(x), module(x))
        client.stop(deployment.id)
    assert not watch.seen.is_set()
    # It does see what is sent in plain text.
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as sender:
        sender.sendall(x.numpy().tobytes())
        wait_for(watch.seen.is_set)
