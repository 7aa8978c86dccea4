"""Seconds that a worker spends on a client of its host: being handed a microbatch, and handing a result over.

Both by what the worker itself runs, over a pair of sockets whose other end a thread serves. That thread copies without
the interpreter's lock, so it disturbs the clock little. What a client has sent lies in the socket when the worker turns
to it, as far as it fits; so the clock starts when there is something to read.
"""

from __future__ import annotations

import contextlib
import select
import socket
import statistics
import threading
from collections.abc import Callable, Iterator, Sequence

import torch

from protos.v1 import stage_daemon_pb2
from stage_daemon.runtime.egress import Result
from stage_daemon.runtime.ingress import InputFormat
from stage_daemon.transport.declared import DeclaredValue, ValueKind
from stage_daemon.transport.parcel import Item
from stage_daemon.transport.streams import copies_of, moved
from stage_daemon.worker import wire
from stage_daemon.worker.door import SEND_BUFFER_BYTES, Inlet, Outlet
from stage_daemon.worker.framing import InputReader, ResultWriter, framed
from stage_daemon.worker.profile.clock import host_clock, synchronize

_WARMUP = 3
_DRAINED_AT_ONCE = 1 << 20


def seconds_of_inputs(items: Sequence[Item], device: torch.device, repetitions: int) -> float:
    """From the first byte that is there until all are values on the device: the median."""
    declared = tuple(_declared(position, item) for position, item in enumerate(items))
    payloads: list[torch.Tensor] = []
    microbatch = stage_daemon_pb2.Microbatch()
    wire.fill_all(microbatch.values, items, payloads)
    message = microbatch.SerializeToString()
    ours, theirs = socket.socketpair()
    clock = host_clock(device)
    with ours, theirs:
        theirs.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
        inlet = Inlet(ours, 0, InputReader(InputFormat(values=declared, symbols={}, copies=copies_of(device))))

        def take(sequence: int) -> float:
            sent = b"".join(framed(sequence, message, [payload.numpy().data for payload in payloads]))
            sender = threading.Thread(target=_send, args=(theirs, sent), daemon=True)
            sender.start()
            _readable(ours)
            before = clock()
            while not (submissions := inlet.advance()):
                _readable(ours)
            submissions[0].read()
            synchronize(device)
            seconds = clock() - before
            sender.join()
            return seconds

        return _median(take, repetitions)


def seconds_of_outputs(items: Sequence[Item], device: torch.device, repetitions: int) -> float:
    """Until the worker may go on: what the socket does not take at once is written beside it."""
    ours, theirs = socket.socketpair()
    clock = host_clock(device)
    copies = copies_of(device)
    with ours, _drained(theirs):
        outlet, writer = Outlet(ours), ResultWriter()

        def give(sequence: int) -> float:
            before = clock()
            given = tuple(items) if copies is None else moved(items, copies.to_host)
            outlet.give(writer.buffers(Result(session_id=0, sequence=sequence, items=given)))
            seconds = clock() - before
            outlet.flush()
            return seconds

        return _median(give, repetitions)


def _median(measure: Callable[[int], float], repetitions: int) -> float:
    """`measure` is called with sequences from 1 on."""
    seconds = [measure(sequence) for sequence in range(1, _WARMUP + max(1, repetitions) + 1)]
    return statistics.median(seconds[_WARMUP:])


def _declared(position: int, item: Item) -> DeclaredValue:
    if isinstance(item, torch.Tensor):
        return DeclaredValue(
            value_id=position, name=str(position), kind=ValueKind.TENSOR, dtype=item.dtype, dims=tuple(item.shape)
        )
    kinds = {bool: ValueKind.BOOLEAN, int: ValueKind.INTEGER, float: ValueKind.FLOATING}
    return DeclaredValue(value_id=position, name=str(position), kind=kinds[type(item)])


def _readable(connection: socket.socket) -> None:
    select.select([connection], [], [])


def _send(connection: socket.socket, content: bytes) -> None:
    with contextlib.suppress(OSError):
        connection.sendall(content)


@contextlib.contextmanager
def _drained(connection: socket.socket) -> Iterator[None]:
    """Reads all that comes until it is shut down."""
    memory = bytearray(_DRAINED_AT_ONCE)

    def read() -> None:
        with contextlib.suppress(OSError):
            while connection.recv_into(memory):
                pass

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    try:
        yield
    finally:
        connection.shutdown(socket.SHUT_RDWR)
        reader.join()
        connection.close()
