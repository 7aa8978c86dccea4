"""Every socket on which a cluster listens, as the kernel lists them: each is declared here, and in docs/security.md."""

from __future__ import annotations

import collections
import ipaddress
import os
import random
import socket
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import torch

from planner.client import PlannerClient
from planner.client.local_cluster import LocalCluster
from planner.client.records import Deployment, DeploymentState
from tests.faults.scale import scaled, tell
from tests.random_examples import random_seeds
from tests.security.scraping import metrics_address
from tests.stage_daemon.control.daemons import two_layers
from tests.waiting import WAIT_SECONDS

pytestmark = pytest.mark.services
NUM_MESSAGES = scaled(360, 1_000_000)
# Linux' number of the state LISTEN in /proc/net/tcp, and the flag of a listening socket in /proc/net/unix.
_TCP_LISTEN, _UNIX_LISTEN = "0A", 0x10000
_UNIX_NAME_FIELD = 7


def inodes_of(process: psutil.Process) -> set[str]:
    """Of the sockets that it has open."""
    found = set()
    for descriptor in Path(f"/proc/{process.pid}/fd").iterdir():
        try:
            target = os.readlink(descriptor)
        except FileNotFoundError:
            continue
        if target.startswith("socket:["):
            found.add(target.removeprefix("socket:[").rstrip("]"))
    return found


def address_of(field: str) -> str:
    """The kernel writes each word of an address in the order of this machine. What is IPv4 is told as such."""
    words, _, port = field.partition(":")
    host = ipaddress.ip_address(b"".join(bytes.fromhex(words[at : at + 8])[::-1] for at in range(0, len(words), 8)))
    mapped = host.ipv4_mapped if isinstance(host, ipaddress.IPv6Address) else None
    return f"{mapped or host}:{int(port, 16)}"


def listening() -> Iterator[tuple[str, str, str]]:
    """(inode, kind, address) of all listening sockets of this host."""
    for kind in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{kind}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == _TCP_LISTEN:
                yield fields[9], "tcp", address_of(fields[1])
    for line in Path("/proc/net/unix").read_text().splitlines()[1:]:
        fields = line.split()
        if int(fields[3], 16) & _UNIX_LISTEN:
            yield fields[6], "unix", fields[_UNIX_NAME_FIELD] if len(fields) > _UNIX_NAME_FIELD else ""


def listeners_of(process: psutil.Process) -> list[tuple[str, str]]:
    own = inodes_of(process)
    return sorted({(kind, address) for inode, kind, address in listening() if inode in own})


def kinds_of(cluster: LocalCluster) -> dict[str, list[tuple[str, str]]]:
    """By what the process is: planner, daemon, worker, or the helper of multiprocessing that workers come from."""
    assert cluster.planner is not None
    found: dict[str, list[tuple[str, str]]] = collections.defaultdict(list)
    services = [("planner", cluster.planner), *(("daemon", daemon) for daemon in cluster.daemons.values())]
    for name, service in services:
        top = psutil.Process(service.process_id)
        found[name] += listeners_of(top)
        for child in top.children(recursive=True):
            found[f"{name}'s children"] += listeners_of(child)
    return found


def test_every_listener_is_declared(cluster: LocalCluster, deployment: Deployment) -> None:
    """While a deployment runs, with an edge between two daemons."""
    found = kinds_of(cluster)
    assert cluster.planner is not None
    scraped = [metrics_address(service) for service in (cluster.planner, *cluster.daemons.values())]
    assert found.pop("planner") == sorted([("tcp", cluster.planner_address), ("tcp", scraped[0])])
    services = {daemon.address for daemon in cluster.daemons.values()} | set(scraped[1:])
    of_daemons = found.pop("daemon")
    assert services <= {address for _, address in of_daemons}
    # What is left is the rendezvous of the deployment, at the first stage's daemon, on the interface it listens on.
    [(kind, rendezvous)] = [(kind, address) for kind, address in of_daemons if address not in services]
    assert kind == "tcp"
    assert rendezvous.startswith("127.0.0.1:")
    doors = [address for kind, address in found["daemon's children"] if address.startswith("@")]
    assert len(doors) == len({stage.device_id for stage in deployment.stages})
    # Files in a folder of their own user: through these Python's multiprocessing is asked for processes.
    rest = [one for name in found for one in found[name] if one[1] not in doors]
    assert all(kind == "unix" and "/pymp-" in address for kind, address in rest), rest


def addresses(cluster: LocalCluster) -> list[tuple[int, str | tuple[str, int]]]:
    """(family, address) of every port and every worker's door."""
    found: list[tuple[int, str | tuple[str, int]]] = []
    for kind, address in (one for several in kinds_of(cluster).values() for one in several):
        host, _, port = address.rpartition(":")
        if kind == "tcp":
            found.append((socket.AF_INET, (host, int(port))))
        elif address.startswith("@"):
            found.append((socket.AF_UNIX, "\0" + address[1:]))
    return found


def hostile(rng: random.Random) -> bytes:
    """Nothing, noise, the beginnings of protocols that are spoken here, and of others."""
    greetings = (b"", b"\x16\x03\x01", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"GET / HTTP/1.1\r\n\r\n", b"\0" * 33)
    return rng.choice(greetings) + rng.randbytes(rng.choice((0, 1, 16, 33, 48, 57, 1000)))


@pytest.mark.fuzz
@pytest.mark.parametrize("seed", random_seeds(1))
def test_hostile_first_messages_on_every_port_change_nothing(
    cluster: LocalCluster, deployment: Deployment, client: PlannerClient, seed: int
) -> None:
    rng, module, batch = random.Random(seed), two_layers(), torch.randn(2, 8)
    before = kinds_of(cluster)
    targets = addresses(cluster)
    assert len(targets) == 9
    for _ in range(NUM_MESSAGES // len(targets)):
        for family, address in targets:
            with socket.socket(family) as connection:
                connection.settimeout(WAIT_SECONDS)
                connection.connect(address)
                connection.sendall(hostile(rng))
    with client.pipeline(deployment.id) as pipeline:
        assert torch.equal(pipeline(batch), module(batch))
    assert client.get_deployment(deployment.id).state is DeploymentState.READY
    assert kinds_of(cluster) == before
    tell(f"{NUM_MESSAGES} hostile first messages on {len(targets)} ports: nothing changed")
