"""Every socket on which a cluster listens, as the kernel lists them: each is declared here, and in docs/security.md."""

from __future__ import annotations

import collections
import ipaddress
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import torch

from planner.client import PlannerClient
from planner.client.local_cluster import LocalCluster
from planner.client.records import Deployment, DeploymentState
from tests.faults.scale import IS_SOAK, MOST_SECONDS, random_moments, scaled, tell
from tests.random_examples import random_seeds
from tests.security.scraping import metrics_address
from tests.security.strangers import Target, say_hostile_things
from tests.stage_daemon.control.daemons import two_layers

pytestmark = pytest.mark.services
NUM_MESSAGES = scaled(360, 1_000_000)
NUM_PARTS = 10
MOST_GROWTH = 1.05
# Linux' number of the state LISTEN in /proc/net/tcp, and the flag of a listening socket in /proc/net/unix.
_TCP_LISTEN, _UNIX_LISTEN = "0A", 0x10000
_UNIX_NAME_FIELD = 7


def inodes_of(process: psutil.Process) -> set[str]:
    """Of the sockets that it has open."""
    listeners = set()
    for descriptor in Path(f"/proc/{process.pid}/fd").iterdir():
        try:
            target = os.readlink(descriptor)
        except FileNotFoundError:
            continue
        if target.startswith("socket:["):
            listeners.add(target.removeprefix("socket:[").rstrip("]"))
    return listeners


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
    listeners: dict[str, list[tuple[str, str]]] = collections.defaultdict(list)
    services = [("planner", cluster.planner), *(("daemon", daemon) for daemon in cluster.daemons.values())]
    for name, service in services:
        top = psutil.Process(service.process_id)
        listeners[name] += listeners_of(top)
        for child in top.children(recursive=True):
            listeners[f"{name}'s children"] += listeners_of(child)
    return listeners


def test_every_listener_is_declared(cluster: LocalCluster, deployment: Deployment) -> None:
    """While a deployment runs, with an edge between two daemons."""
    kinds = kinds_of(cluster)
    assert cluster.planner is not None
    scraped = [metrics_address(service) for service in (cluster.planner, *cluster.daemons.values())]
    assert kinds.pop("planner") == sorted([("tcp", cluster.planner_address), ("tcp", scraped[0])])
    services = {daemon.address for daemon in cluster.daemons.values()} | set(scraped[1:])
    of_daemons = kinds.pop("daemon")
    assert services <= {address for _, address in of_daemons}
    # What is left is the rendezvous of the deployment, at the first stage's daemon, on the interface it listens on.
    [(kind, rendezvous)] = [(kind, address) for kind, address in of_daemons if address not in services]
    assert kind == "tcp"
    assert rendezvous.startswith("127.0.0.1:")
    doors = [address for kind, address in kinds["daemon's children"] if address.startswith("@")]
    assert len(doors) == len({stage.device_id for stage in deployment.stages})
    # Files in a folder of their own user: through these Python's multiprocessing is asked for processes.
    rest = [one for name in kinds for one in kinds[name] if one[1] not in doors]
    assert all(kind == "unix" and "/pymp-" in address for kind, address in rest), rest


def addresses(cluster: LocalCluster) -> list[Target]:
    """(family, address) of every port and every worker's door."""
    targets: list[Target] = []
    for kind, address in (one for several in kinds_of(cluster).values() for one in several):
        host, _, port = address.rpartition(":")
        if kind == "tcp":
            targets.append((socket.AF_INET, (host, int(port))))
        elif address.startswith("@"):
            targets.append((socket.AF_UNIX, "\0" + address[1:]))
    return targets


def resident_bytes(cluster: LocalCluster) -> list[int]:
    """Of the planner and of each daemon, with all that they started."""
    assert cluster.planner is not None
    services = [psutil.Process(service.process_id) for service in (cluster.planner, *cluster.daemons.values())]
    return [sum(one.memory_info().rss for one in (service, *service.children(recursive=True))) for service in services]


@pytest.mark.fuzz
@pytest.mark.timeout(MOST_SECONDS)
@pytest.mark.parametrize("seed", random_seeds(1))
def test_hostile_first_messages_on_every_port_change_nothing(
    cluster: LocalCluster, deployment: Deployment, client: PlannerClient, seed: int
) -> None:
    module, batch = two_layers(), torch.randn(2, 8)
    before = kinds_of(cluster)
    targets = addresses(cluster)
    assert len(targets) == 9
    seed, begun = seed + random_moments().randrange(1 << 32), time.monotonic()
    memory = [resident_bytes(cluster)]
    for part in range(NUM_PARTS):
        say_hostile_things(targets, len(range(part, NUM_MESSAGES, NUM_PARTS)), seed * NUM_PARTS + part)
        memory.append(resident_bytes(cluster))
    seconds = time.monotonic() - begun
    with client.pipeline(deployment.id) as pipeline:
        assert torch.equal(pipeline(batch), module(batch))
    assert client.get_deployment(deployment.id).state is DeploymentState.READY
    assert kinds_of(cluster) == before
    tell(f"{NUM_MESSAGES} hostile first messages on {len(targets)} ports in {seconds:.0f} s: nothing changed")
    for name, *sizes in zip(("planner", *cluster.daemons), *memory, strict=True):
        tell(f"memory of {name} after each tenth, in MiB: {', '.join(str(size >> 20) for size in sizes)}")
        # What is taken once, by pools and arenas, is taken by the half of them.
        assert max(sizes[NUM_PARTS // 2 :]) <= MOST_GROWTH * sizes[NUM_PARTS // 2] or not IS_SOAK
