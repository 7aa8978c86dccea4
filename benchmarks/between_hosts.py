"""An edge between two hosts, plain and over TLS, beside a bare TCP connection: two network namespaces and a veth pair.

    python -m benchmarks.between_hosts [windows]        as root: it makes and removes the namespaces

Each size is sent in windows in turns: by sockets that send a length and that many bytes and answer with a byte, by an
edge, and by an edge over TLS; two microbatches are under way at a time. Clock of the sender, until the last receipt.
"""

from __future__ import annotations

import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import torch

from access.authority import create_authority, issue
from access.files import TlsFiles
from access.streams import StreamTls
from access.tickets import purpose_key
from stage_daemon.transport.connect import Channels, Meeting, open_channels
from stage_daemon.transport.declared import DeclaredValue, Symbol, SymbolReference, ValueKind
from stage_daemon.transport.edge import Edge
from stage_daemon.transport.parcel import Parcel, ParcelKind
from stage_daemon.transport.store_server import StoreServer

SIZES = {"4 KiB": (1 << 12, 400), "256 KiB": (1 << 18, 100), "16 MiB": (1 << 24, 6)}
PEERS = ("bare TCP", "edge", "edge over TLS")
IN_FLIGHT = 2
DEADLINE_SECONDS = 60.0
DEFAULT_WINDOWS = 7
_SOURCE, _TARGET = 0, 1
_RAW_PORT, _STORE_PORT_FILE = 20001, "store_port"

# Sends, or receives, so many microbatches of so many bytes.
Window = Callable[[int, int], None]
Spent = dict[str, dict[str, list[float]]]


def main(windows: int = DEFAULT_WINDOWS) -> None:
    with tempfile.TemporaryDirectory(prefix="between-hosts-") as name, namespaces() as (spaces, addresses):
        folder = Path(name)
        create_authority(folder, timedelta(days=1))
        issue(folder, folder, role="daemon", name="daemon", hosts=addresses, valid=timedelta(days=1))
        command = [sys.executable, "-m", "benchmarks.between_hosts", str(windows), str(folder), addresses[_TARGET]]
        ends = [
            subprocess.Popen(["ip", "netns", "exec", space, *command, str(end)], stdout=subprocess.PIPE, text=True)
            for end, space in enumerate(spaces)
        ]
        outputs = [json.loads(process.communicate()[0]) for process in ends]
    _report(*outputs)


@contextmanager
def namespaces() -> Iterator[tuple[tuple[str, str], tuple[str, str]]]:
    """Names and addresses of the source's and the target's."""
    spaces = f"source{os.getpid()}", f"target{os.getpid()}"
    addresses = "10.213.77.1", "10.213.77.2"
    try:
        for space in spaces:
            _ip("netns", "add", space)
        _ip("link", "add", "edge0", "netns", spaces[0], "type", "veth", "peer", "name", "edge0", "netns", spaces[1])
        for space, address in zip(spaces, addresses, strict=True):
            _ip("-n", space, "address", "add", f"{address}/24", "dev", "edge0")
            _ip("-n", space, "link", "set", "edge0", "up")
            _ip("-n", space, "link", "set", "lo", "up")
        yield spaces, addresses
    finally:
        for space in spaces:
            subprocess.run(["ip", "netns", "delete", space], check=False)


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True)


def run_end(windows: int, folder: Path, address: str, end: int) -> None:
    """In its namespace: all peers of one end, and what they spent on the clock and of CPU."""
    torch.set_num_threads(1)
    raw = _raw_socket(address, end)
    port = _store_port(folder, address, end)
    files = TlsFiles(certificate=folder / "daemon.crt", key=folder / "daemon.key", authorities=folder / "ca.crt")
    plain = _open(f"{address}:{port}", end, 1, None)
    secured = _open(f"{address}:{port}", end, 2, StreamTls(files=files))
    peers: Mapping[str, Window] = {
        "bare TCP": _sending_bytes(raw) if end == _SOURCE else _receiving_bytes(raw),
        "edge": _sending(plain) if end == _SOURCE else _receiving(plain),
        "edge over TLS": _sending(secured) if end == _SOURCE else _receiving(secured),
    }
    clock: Spent = {size: {peer: [] for peer in PEERS} for size in SIZES}
    cpu: Spent = {size: {peer: [] for peer in PEERS} for size in SIZES}
    for size, (num_bytes, count) in SIZES.items():
        for index in range(windows + 1):
            for peer, window in peers.items():
                began, began_cpu = time.monotonic(), time.process_time()
                window(num_bytes, count)
                if index:
                    clock[size][peer].append((time.monotonic() - began) / count)
                    cpu[size][peer].append((time.process_time() - began_cpu) / count)
    print(json.dumps({"clock": clock, "cpu": cpu}))
    sys.stdout.flush()
    # Threads of both channels still wait for what never comes.
    os._exit(0)


def _raw_socket(address: str, end: int) -> socket.socket:
    if end == _TARGET:
        with socket.create_server((address, _RAW_PORT)) as server:
            connection, _ = server.accept()
    else:
        connection = _connected(address)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def _connected(address: str) -> socket.socket:
    until = time.monotonic() + DEADLINE_SECONDS
    while True:
        try:
            return socket.create_connection((address, _RAW_PORT))
        except OSError:
            if time.monotonic() > until:
                raise
        time.sleep(0.05)


def _store_port(folder: Path, address: str, end: int) -> int:
    """The target's store, which serves for as long as its process is there."""
    file = folder / _STORE_PORT_FILE
    if end == _TARGET:
        partial = file.with_suffix(".partial")
        partial.write_text(str(StoreServer(address, purpose_key(b"", "rendezvous")).port))
        partial.replace(file)
    while not file.exists():
        time.sleep(0.05)
    return int(file.read_text())


def _open(rendezvous: str, end: int, generation: int, tls: StreamTls | None) -> Channels:
    hidden = DeclaredValue(
        value_id=1, name="hidden", kind=ValueKind.TENSOR, dtype=torch.float32, dims=(SymbolReference(1),)
    )
    edge = Edge(
        id=1,
        deployment_id="benchmark",
        generation=generation,
        source_stage=_SOURCE,
        target_stage=_TARGET,
        source_device_id="source/cpu0",
        target_device_id="target/cpu0",
        values=(hidden,),
        symbols={1: Symbol(id=1, name="length", lower=0)},
    )
    meeting = Meeting(
        address=rendezvous,
        deadline_seconds=DEADLINE_SECONDS,
        microbatches_in_flight=IN_FLIGHT,
        device=torch.device("cpu"),
        on_failure=lambda error: sys.exit(str(error)),
        max_tensor_bytes=1 << 30,
        tls=tls,
    )
    return open_channels([edge], edge.source_device_id if end == _SOURCE else edge.target_device_id, meeting)


def _sending(channels: Channels) -> Window:
    (sender,) = channels.senders.values()
    sent = 0

    def window(num_bytes: int, count: int) -> None:
        nonlocal sent
        tensor = torch.ones(num_bytes // 4)
        for _ in range(count):
            sent += 1
            sender.send(Parcel(kind=ParcelKind.DATA, microbatch=sent, session_id=1, sequence=sent, items=(tensor,)))
        sender.wait()

    return window


def _receiving(channels: Channels) -> Window:
    (receiver,) = channels.receivers.values()

    def window(num_bytes: int, count: int) -> None:
        for _ in range(count):
            receiver.receive()

    return window


def _sending_bytes(connection: socket.socket) -> Window:
    def window(num_bytes: int, count: int) -> None:
        content, unreceived = memoryview(bytes(num_bytes)), 0
        for _ in range(count):
            while unreceived >= IN_FLIGHT:
                unreceived -= len(connection.recv(IN_FLIGHT))
            connection.sendall(content)
            unreceived += 1
        while unreceived:
            unreceived -= len(connection.recv(IN_FLIGHT))

    return window


def _receiving_bytes(connection: socket.socket) -> Window:
    def window(num_bytes: int, count: int) -> None:
        for _ in range(count):
            view = memoryview(bytearray(num_bytes))
            while view:
                view = view[connection.recv_into(view) :]
            connection.send(b"r")

    return window


def _report(source: Mapping[str, Spent], target: Mapping[str, Spent]) -> None:
    print("| size | peer | µs per microbatch | CPU µs, both ends | MB/s | to bare TCP, clock | CPU |")
    print("|---|---|---|---|---|---|---|")
    for size, (num_bytes, _) in SIZES.items():
        clock = {peer: statistics.median(source["clock"][size][peer]) for peer in PEERS}
        cpu = {peer: sum(statistics.median(end["cpu"][size][peer]) for end in (source, target)) for peer in PEERS}
        for peer in PEERS:
            cells = [size, peer, f"{clock[peer] * 1e6:,.0f}", f"{cpu[peer] * 1e6:,.0f}"]
            cells += [f"{num_bytes / clock[peer] / 1e6:,.0f}", f"{clock[peer] / clock['bare TCP']:.2f}"]
            print("| " + " | ".join([*cells, f"{cpu[peer] / cpu['bare TCP']:.2f}"]) + " |")


if __name__ == "__main__":
    if len(sys.argv) > 2:
        run_end(int(sys.argv[1]), Path(sys.argv[2]), sys.argv[3], int(sys.argv[4]))
    else:
        main(*map(int, sys.argv[1:]))
