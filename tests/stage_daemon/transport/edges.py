"""Edges to test with, and the ways to connect one."""

from __future__ import annotations

import multiprocessing
import os
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from functools import partial
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import torch

from access.streams import StreamTls
from access.tickets import purpose_key
from stage_daemon.errors import DaemonError
from stage_daemon.transport import connect
from stage_daemon.transport.channel import ReceiveChannel, SendChannel
from stage_daemon.transport.connect import Meeting, open_channels
from stage_daemon.transport.declared import DeclaredValue, SymbolReference, ValueKind
from stage_daemon.transport.declared import Symbol as Symbol
from stage_daemon.transport.edge import Edge
from stage_daemon.transport.parcel import Item, Parcel
from stage_daemon.transport.store_server import StoreServer
from tests.access.certificates import Certificates
from tests.waiting import WAIT_SECONDS

IN_FLIGHT = 2
CPU = torch.device("cpu")
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
    device: torch.device = CPU,
) -> Meeting:
    """Without a host the two ends share no memory."""
    return Meeting(
        address=f"127.0.0.1:{port}",
        deadline_seconds=deadline_seconds,
        microbatches_in_flight=IN_FLIGHT,
        device=device,
        on_failure=failures,
        max_tensor_bytes=1 << 34,
        host=host,
        secret=secret,
        tls=tls,
    )


class Gpu(Enum):
    """What crosses between two processes on one GPU goes by the host, or over NCCL as if these were two GPUs."""

    BY_THE_HOST = auto()
    NCCL = auto()

    def device(self) -> torch.device:
        """The only one, ready for use, in a process that has asked NCCL for nothing yet."""
        if self is Gpu.NCCL:
            # Two ranks on one GPU are refused within a host.
            name = os.environ["NCCL_HOSTID"] = f"process {os.getpid()}"
            connect._gpu = lambda device: name
        device = torch.device("cuda", 0)
        torch.zeros(1, device=device)
        return device


class OnGpu:
    """An end whose tensors are on a GPU, for a script or a test that has them on the CPU."""

    def __init__(self, end: Any) -> None:
        self._end = end

    def __getattr__(self, name: str) -> Any:
        return getattr(self._end, name)

    def send(self, parcel: Parcel) -> int:
        num_bytes: int = self._end.send(replace(parcel, items=tuple(map(_on_gpu, parcel.items))))
        return num_bytes

    def receive(self) -> tuple[Parcel, int]:
        parcel, num_bytes = self._end.receive()
        assert all(item.is_cuda for item in parcel.items if isinstance(item, torch.Tensor))
        return replace(parcel, items=tuple(map(_on_cpu, parcel.items))), num_bytes


def _on_gpu(item: Item) -> Item:
    return _moved(item, torch.device("cuda", 0)) if isinstance(item, torch.Tensor) else item


def _on_cpu(item: Item) -> Item:
    return _moved(item, CPU) if isinstance(item, torch.Tensor) else item


def _moved(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """With its strides, whatever they are."""
    if tensor.is_conj():
        return _moved(tensor.conj(), device).conj()
    storage = torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(tensor.untyped_storage()).to(device)
    moved = torch.empty(0, dtype=tensor.dtype, device=device)
    return moved.set_(storage.untyped_storage(), tensor.storage_offset(), tensor.size(), tensor.stride())


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
    gpu: Gpu | None = None,
) -> Iterator[tuple[SendChannel | ReceiveChannel, BaseProcess]]:
    """This process has one end of the edge, and a child runs `script` on the other."""
    device = gpu.device() if gpu else CPU
    store = StoreServer("127.0.0.1", purpose_key(b"", "rendezvous"))
    ours, theirs = CONTEXT.Pipe()
    child = CONTEXT.Process(
        target=_run_script,
        args=(script, edge, store.port, script_sends, deadline_seconds, host, theirs, tls, gpu),
        daemon=True,
    )
    child.start()
    device_id = edge.target_device_id if script_sends else edge.source_device_id
    try:
        # So that the deadline is for connecting alone, not for starting a process too.
        assert ours.poll(WAIT_SECONDS), "the other process did not start"
        there = meeting(store.port, deadline_seconds, failures, host, tls=tls, device=device)
        channels = open_channels([edge], device_id, there)
        ends = channels.receivers if script_sends else channels.senders
        yield (OnGpu(ends[edge.id]) if gpu else ends[edge.id]), child
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
    gpu: Gpu | None,
) -> None:
    device_id = edge.source_device_id if script_sends else edge.target_device_id
    device = gpu.device() if gpu else CPU
    started.send(True)
    there = meeting(port, deadline_seconds, Failures(), host, tls=tls, device=device)
    channels = open_channels([edge], device_id, there)
    end = (channels.senders if script_sends else channels.receivers)[edge.id]
    script(OnGpu(end) if gpu else end)
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
# On machines that have a GPU only.
ON_GPU = {
    "gpu by memory": partial(other_process, gpu=Gpu.BY_THE_HOST),
    "gpu by tcp": partial(other_process, host="", gpu=Gpu.BY_THE_HOST),
    "nccl": partial(other_process, gpu=Gpu.NCCL),
    "nccl between hosts": partial(other_process, host="", gpu=Gpu.NCCL),
}
if torch.cuda.is_available():
    CONNECTIONS |= ON_GPU
