"""Seconds that a worker spends on a client of its host: being handed a microbatch, and handing a result over.

Both by what the worker itself runs, over a pair of sockets, and shared memory for large payloads. What a client has
sent lies there when the worker turns to it, as far as it fits; so the clock starts when there is something to read. A
thread serves the other end where more may cross than a socket takes: it copies without the interpreter's lock, so it
disturbs the clock little.
"""

from __future__ import annotations

import contextlib
import select
import socket
import statistics
import threading
from collections.abc import Callable, Iterator, Sequence
from itertools import count

import torch

from access.door import (
    BEHIND,
    HEAD,
    SEND_BUFFER_BYTES,
    SlotReader,
    SlotWriter,
    bytes_together,
    send_announcement,
)
from access.ring import Ring
from protos.v1 import stage_daemon_pb2
from stage_daemon.runtime.egress import Result
from stage_daemon.runtime.ingress import InputFormat
from stage_daemon.transport.declared import DeclaredValue, ValueKind
from stage_daemon.transport.parcel import Item
from stage_daemon.transport.streams import copies_of
from stage_daemon.worker import wire
from stage_daemon.worker.door import Inlet, Outlet
from stage_daemon.worker.framing import InputReader, ResultWriter
from stage_daemon.worker.profile.clock import host_clock, synchronize

# Takes one microbatch's inputs, and gives the seconds of that.
Take = Callable[[], float]
# Hands one microbatch's outputs over, and gives the seconds of that.
Give = Callable[[Sequence[Item]], float]

_WARMUP = 3
# What every socket takes at once.
_SMALL_BYTES = 64 << 10
_READ_AT_ONCE = 1 << 20


def seconds_of_inputs(items: Sequence[Item], device: torch.device, repetitions: int) -> float:
    """One after the other: the median."""
    with handed_in(items, device) as take:
        return _median(take, repetitions)


def seconds_of_outputs(items: Sequence[Item], device: torch.device, repetitions: int) -> float:
    """One after the other: the median."""
    with handed_over(device) as give:
        return _median(lambda: give(items), repetitions)


@contextlib.contextmanager
def handed_in(items: Sequence[Item], device: torch.device) -> Iterator[Take]:
    """From the first byte that is there until all are values on the device."""
    declared = tuple(_declared(position, item) for position, item in enumerate(items))
    payloads: list[torch.Tensor] = []
    microbatch = stage_daemon_pb2.Microbatch()
    wire.fill_all(microbatch.values, items, payloads)
    message, data = microbatch.SerializeToString(), [payload.numpy().data for payload in payloads]
    ours, theirs = socket.socketpair()
    clock, sequences = host_clock(device), count(1)
    with ours, theirs:
        theirs.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
        reader = InputReader(
            InputFormat(values=declared, symbols={}, copies=copies_of(device)), frozenset(range(len(items)))
        )
        inlet, slots = Inlet(ours, 0, reader, shares_memory=True), SlotWriter()

        def take() -> float:
            content = _frame(slots, theirs, next(sequences), message, data)
            is_small = len(content) <= _SMALL_BYTES
            sender = None if is_small else _started(lambda: _send(theirs, content))
            if is_small:
                _send(theirs, content)
            _readable(ours)
            before = clock()
            while not (submissions := inlet.advance()):
                _readable(ours)
            submissions[0].read()
            synchronize(device)
            seconds = clock() - before
            if sender is not None:
                sender.join()
            return seconds

        yield take


@contextlib.contextmanager
def handed_over(device: torch.device) -> Iterator[Give]:
    """Until the worker may go on: what the socket does not take at once is written beside it."""
    ours, theirs = socket.socketpair()
    clock, sequences = host_clock(device), count(1)
    copies = copies_of(device)
    with ours, theirs:
        outlet, writer, slots = Outlet(ours, shares_memory=True, copies=copies), ResultWriter(copies), SlotReader()

        def give(items: Sequence[Item]) -> float:
            before = clock()
            result = Result(session_id=0, sequence=next(sequences), items=tuple(items))
            message, payloads = writer.content(result)
            seconds = clock() - before
            is_small = len(message) + bytes_together([payload.nbytes for payload in payloads]) <= _SMALL_BYTES
            reader = None if is_small else _started(lambda: _read_frame(slots, theirs))
            before = clock()
            outlet.give(result.sequence, message, payloads)
            seconds += clock() - before
            if reader is not None:
                reader.join()
            else:
                _read_frame(slots, theirs)
            return seconds

        yield give


def _median(measure: Callable[[], float], repetitions: int) -> float:
    seconds = [measure() for _ in range(_WARMUP + max(1, repetitions))]
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


def _started(work: Callable[[], None]) -> threading.Thread:
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


def _send(connection: socket.socket, content: bytes) -> None:
    with contextlib.suppress(OSError):
        connection.sendall(content)


def _frame(
    slots: SlotWriter, connection: socket.socket, sequence: int, message: bytes, payloads: Sequence[memoryview]
) -> bytes:
    """As a client sends it; what is to lie in shared memory lies there."""

    def announce(ring: Ring, descriptor: int) -> bool:
        send_announcement(connection, ring, descriptor)
        return True

    return b"".join(slots.frame(sequence, message, payloads, announce))


def _read_frame(slots: SlotReader, connection: socket.socket) -> None:
    """As a client reads it that forgets it at once."""
    head = memoryview(bytearray(HEAD.size))
    sequence = 0
    while sequence == 0:
        num_read = 0
        while num_read < HEAD.size:
            _readable(connection)
            num_read += slots.receive(connection, head[num_read:])
        sequence, message_bytes, place, num_bytes = HEAD.unpack(head)
        if sequence == 0:
            slots.announced(place, num_bytes)
    _read(connection, message_bytes + (num_bytes if place == BEHIND else 0))
    if place != BEHIND:
        slots.payload(place, num_bytes)


def _read(connection: socket.socket, num_bytes: int) -> None:
    memory = bytearray(min(num_bytes, _READ_AT_ONCE))
    with contextlib.suppress(OSError):
        while num_bytes > 0 and (num_read := connection.recv_into(memory, min(num_bytes, len(memory)))):
            num_bytes -= num_read
