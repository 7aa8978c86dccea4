"""Edges to test with, and the ways to connect one."""

from __future__ import annotations

import multiprocessing
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path

import torch

from access.streams import StreamTls
from access.tickets import purpose_key
from stage_daemon.errors import DaemonError
from stage_daemon.transport.channel import ReceiveChannel, SendChannel
from stage_daemon.transport.connect import Meeting, open_channels
from stage_daemon.transport.declared import DeclaredValue, SymbolReference, ValueKind
from stage_daemon.transport.declared import Symbol as Symbol
from stage_daemon.transport.edge import Edge
from stage_daemon.transport.store_server import StoreServer
from tests.access.certificates import Certificates
from tests.waiting import WAIT_SECONDS

IN_FLIGHT = 2
CONTEXT = multiprocessing.get_context("forkserver")

Script = Callable[..., None]


def tensor(value_id: int, name: str, dtype: torch.dtype, *dims: object) -> DeclaredValue:
    """A str among the dims is a dynamic dimension: "b" for symbol 1, "s" for symbol 2."""
    symbols = {"b": SymbolReference(1), "s": SymbolReference(2)}
    return DeclaredValue(
        value_id=value_id,
        name=name,
        kind=ValueKind.TENSOR,
        dtype=dtype,
        dims=tuple(symbols[dim] if isinstance(dim, str) else dim for dim in dims),
    )


def edge_of(*values: DeclaredValue, generation: int = 1) -> Edge:
    return Edge(
        id=3,
        deployment_id="dep-1",
        generation=generation,
        source_stage=0,
        target_stage=1,
        source_device_id="node0/cpu",
        target_device_id="node1/cpu",
        values=values,
        symbols={1: Symbol(id=1, name="batch", lower=0, upper=1 << 24), 2: Symbol(id=2, name="length", lower=1)},
    )


@dataclass(slots=True)
class Failures:
    """What a channel reported besides raising it."""

    errors: list[DaemonError] = field(default_factory=list)
    arrived: threading.Event = field(default_factory=threading.Event)

    def __call__(self, error: DaemonError) -> None:
        self.errors.append(error)
        self.arrived.set()


def meeting(
    port: int,
    deadline_seconds: float,
    failures: Failures,
    host: str = "here",
    secret: bytes = b"",
    tls: StreamTls | None = None,
) -> Meeting:
    """Without a host the two ends share no memory."""
    return Meeting(
        address=f"127.0.0.1:{port}",
        deadline_seconds=deadline_seconds,
        microbatches_in_flight=IN_FLIGHT,
        device=torch.device("cpu"),
        on_failure=failures,
        max_tensor_bytes=1 << 34,
        host=host,
        secret=secret,
        tls=tls,
    )


@contextmanager
def other_process(
    edge: Edge,
    script: Script,
    *,
    script_sends: bool,
    deadline_seconds: float,
    failures: Failures,
    host: str = "here",
    tls: StreamTls | None = None,
) -> Iterator[tuple[SendChannel | ReceiveChannel, BaseProcess]]:
    """This process has one end of the edge, and a child runs `script` on the other."""
    store = StoreServer("127.0.0.1", purpose_key(b"", "rendezvous"))
    ours, theirs = CONTEXT.Pipe()
    child = CONTEXT.Process(
        target=_run_script,
        args=(script, edge, store.port, script_sends, deadline_seconds, host, theirs, tls),
        daemon=True,
    )
    child.start()
    device_id = edge.target_device_id if script_sends else edge.source_device_id
    try:
        # So that the deadline is for connecting alone, not for starting a process too.
        assert ours.poll(WAIT_SECONDS), "the other process did not start"
        channels = open_channels([edge], device_id, meeting(store.port, deadline_seconds, failures, host, tls=tls))
        ends = channels.receivers if script_sends else channels.senders
        yield ends[edge.id], child
        channels.pulse.stop()
    finally:
        child.kill()
        child.join()
        store.close()


def _run_script(
    script: Script,
    edge: Edge,
    port: int,
    script_sends: bool,
    deadline_seconds: float,
    host: str,
    started: Connection,
    tls: StreamTls | None,
) -> None:
    device_id = edge.source_device_id if script_sends else edge.target_device_id
    started.send(True)
    channels = open_channels([edge], device_id, meeting(port, deadline_seconds, Failures(), host, tls=tls))
    script((channels.senders if script_sends else channels.receivers)[edge.id])
    threading.Event().wait()


@contextmanager
def same_process(
    edge: Edge, script: Script, *, script_sends: bool, deadline_seconds: float, failures: Failures
) -> Iterator[tuple[SendChannel | ReceiveChannel, None]]:
    """Both ends are here: `script` runs on a thread."""
    here = replace(edge, target_device_id=edge.source_device_id)
    channels = open_channels([here], here.source_device_id, meeting(0, deadline_seconds, failures))
    sender, receiver = channels.senders[edge.id], channels.receivers[edge.id]
    thread = threading.Thread(target=_until_closed, args=(script, sender if script_sends else receiver), daemon=True)
    thread.start()
    yield (receiver if script_sends else sender), None
    sender.close()
    thread.join(WAIT_SECONDS)
    channels.pulse.stop()


def _until_closed(script: Script, end: SendChannel | ReceiveChannel) -> None:
    try:
        script(end)
    except DaemonError:
        return


@contextmanager
def other_process_over_tls(
    edge: Edge, script: Script, *, script_sends: bool, deadline_seconds: float, failures: Failures
) -> Iterator[tuple[SendChannel | ReceiveChannel, BaseProcess]]:
    """As between hosts; both ends show the same daemon's certificate."""
    with (
        tempfile.TemporaryDirectory() as folder,
        other_process(
            edge,
            script,
            script_sends=script_sends,
            deadline_seconds=deadline_seconds,
            failures=failures,
            host="",
            tls=StreamTls(files=Certificates.of(Path(folder)).issue("daemon")),
        ) as opened,
    ):
        yield opened


CONNECTIONS = {
    "memory": other_process,
    "tcp": partial(other_process, host=""),
    "tls": other_process_over_tls,
    "local": same_process,
}
