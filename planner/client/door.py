"""The short cut between a client and a worker of one host: microbatches by a socket of the worker's, past its daemon.

The protocol stands at WorkerDoor in stage_daemon.proto.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from access.buffers import MAX_BUFFERS, drop_sent
from access.door import (
    BEHIND,
    HEAD,
    INPUTS,
    INPUTS_ANSWERED,
    INPUTS_SHARED,
    OUTPUTS,
    OUTPUTS_SHARED,
    READ_BYTES,
    SEND_BUFFER_BYTES,
    SESSION,
    TRAINING,
    WELCOME,
    SlotReader,
    SlotWriter,
    announcement,
    fits_beside_slot,
    framed,
    rights,
    send_announcement,
)
from access.ring import Ring
from planner.errors import ResourceExhausted
from protos.v1 import stage_daemon_pb2

_SHARED = {INPUTS: INPUTS_SHARED, OUTPUTS: OUTPUTS_SHARED, TRAINING: TRAINING}
# Of sessions at the same time, and of each direction of one.
_MAX_KEPT = 4
_MAX_KEPT_BYTES = 1 << 28
# A worker that hangs is told of by its daemon.
_CONNECT_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class SessionMemory:
    """What the two directions of a session cross in, as far as there is any."""

    inputs: Ring | None = None
    outputs: Ring | None = None

    def is_worth_keeping(self) -> bool:
        """All of it."""
        return _worth_keeping(self.inputs) is self.inputs and _worth_keeping(self.outputs) is self.outputs


class KeptMemory:
    """Memory of sessions that are over, for later ones with the same workers. Threads may share it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # A fork shares what its parent may still use.
        self._process_id = os.getpid()
        self._kept: list[SessionMemory] = []
        self._is_closed = False

    def take(self) -> SessionMemory:
        with self._lock:
            return self._kept.pop() if self._kept and os.getpid() == self._process_id else SessionMemory()

    def give_back(self, memory: SessionMemory) -> None:
        """Only where both ends are done with what was sent: whoever writes late would write to another's microbatch."""
        with self._lock:
            if len(self._kept) < _MAX_KEPT and not self._is_closed:
                self._kept.append(SessionMemory(_worth_keeping(memory.inputs), _worth_keeping(memory.outputs)))

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
            self._kept.clear()


def _worth_keeping(ring: Ring | None) -> Ring | None:
    return ring if ring is not None and ring.size_bytes <= _MAX_KEPT_BYTES and not ring.has_lost_slots else None


class Passage:
    """One direction of a session, or both of a training. Raises OSError where the worker has gone or stands still,
    and ResourceExhausted where this process has no room for the memory that the worker shares."""

    def __init__(
        self, door: stage_daemon_pb2.WorkerDoor, purpose: bytes, session_id: int, memory: Ring | None = None
    ) -> None:
        """`memory`: what an earlier session has left, see `memory`."""
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        is_answered = purpose == TRAINING
        if purpose == INPUTS and door.shares_memory and door.answers_memory:
            purpose, is_answered = INPUTS_ANSWERED, True
        elif door.shares_memory:
            purpose = _SHARED[purpose]
        self._incoming = SlotReader(memory, keeps_descriptors=True) if purpose == OUTPUTS_SHARED else None
        self._outgoing: SlotWriter | None = None
        if purpose in (INPUTS_ANSWERED, INPUTS_SHARED, TRAINING):
            self._outgoing = SlotWriter(memory, keeps_descriptors=True, is_answered=is_answered)
        try:
            self._socket.settimeout(_CONNECT_SECONDS)
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
            self._socket.connect(f"\0{door.socket_name}")
            hello = door.token.encode() + purpose + SESSION.pack(session_id)
            if self._incoming is not None:
                hello += announcement(memory)
            self._socket.sendmsg([hello], rights(memory.descriptor) if self._incoming and memory else ())
            if self._socket.recv(len(WELCOME)) != WELCOME:
                raise ConnectionError("the worker turned the session away")
            if self._outgoing is not None and memory is not None:
                send_announcement(self._socket, memory, memory.descriptor)
            self._socket.settimeout(None)
        except BaseException:
            self._socket.close()
            raise
        self._memory = bytearray(READ_BYTES)
        self._view = memoryview(self._memory)
        # Read from the worker, and not taken yet.
        self._begin = self._end = 0
        self._readable, self._writable = select.poll(), select.poll()
        self._readable.register(self._socket, select.POLLIN)
        self._writable.register(self._socket, select.POLLOUT)

    def fileno(self) -> int:
        return self._socket.fileno()

    @property
    def memory(self) -> Ring | None:
        """What payloads cross in. Once all that was sent has been answered, a later session's passage can take it over:
        neither end makes new memory then, which costs more than many copies."""
        if self._outgoing is not None:
            with contextlib.suppress(OSError):
                self._hear(self._outgoing)
        slots = self._incoming or self._outgoing
        return slots.ring if slots is not None else None

    def close(self) -> None:
        """Results in shared memory stay valid."""
        self._socket.close()
        for slots in (self._incoming, self._outgoing):
            if slots is not None:
                slots.close()

    def end_waits(self) -> None:
        """What another thread sends or takes fails at once, and whatever follows."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def send(self, sequence: int, message: bytes, payloads: Sequence[memoryview], timeout_seconds: float) -> None:
        """Returns once the kernel has it all, or the worker. The message need not name the sequence."""
        outgoing = self._outgoing
        if outgoing is not None:
            self._hear(outgoing)
            buffers = outgoing.frame(sequence, message, payloads, partial(self._announce, timeout_seconds))
        else:
            buffers = framed(sequence, message, payloads)
        self._write(buffers, sum(map(len, buffers)), timeout_seconds)

    def is_ready(self) -> bool:
        """Something has come, be it the end. Reads it, as far as there is room."""
        if self._begin < self._end:
            return True
        self._begin = self._end = 0
        try:
            self._end = self._receive_now(self._view)
        except BlockingIOError:
            return False
        except OSError:
            # Whoever takes it finds out.
            pass
        return True

    def take(self, timeout_seconds: float) -> tuple[int, bytes, memoryview] | None:
        """A sequence, a message and its tensors' bytes, in memory of their own; None once the worker closed its end."""
        until = time.monotonic() + timeout_seconds
        if self._outgoing is not None and self._outgoing.awaits_answer:
            # Of memory: the worker says so before it reads the request that follows.
            said = bytearray(1)
            if not self._read(memoryview(said), until):
                return None
            self._outgoing.answered(bytes(said))
        while True:
            if self._end - self._begin < HEAD.size and not self._read_on(HEAD.size, until):
                return None
            sequence, message_bytes, place, payload_bytes = HEAD.unpack_from(self._memory, self._begin)
            if self._incoming is None or sequence != 0:
                break
            self._begin += HEAD.size
            if not self._incoming.announced(place, payload_bytes):
                raise ResourceExhausted(
                    f"memory for results: the worker shares {place} slots of {payload_bytes} bytes, and this process "
                    "has no descriptor or no address space for them; raise its limits (ulimit -n, ulimit -v), or keep "
                    "fewer results and files open"
                )
        message_end = HEAD.size + message_bytes
        if place != BEHIND:
            return self._take_from_slot(sequence, message_end, place, payload_bytes, until)
        whole = message_end + payload_bytes
        if whole > READ_BYTES:
            self._begin += HEAD.size
            return self._take_large(sequence, message_bytes, payload_bytes, until)
        if self._end - self._begin < whole and not self._read_on(whole, until):
            return None
        begin = self._begin
        self._begin += whole
        message = self._view[begin + HEAD.size : begin + message_end].tobytes()
        return sequence, message, memoryview(self._memory[begin + message_end : begin + whole])

    def _take_from_slot(
        self, sequence: int, message_end: int, place: int, payload_bytes: int, until: float
    ) -> tuple[int, bytes, memoryview] | None:
        if self._incoming is None or not fits_beside_slot(message_end - HEAD.size):
            raise ConnectionError(f"result {sequence} at place {place}, with a message of {message_end} bytes")
        if self._end - self._begin < message_end and not self._read_on(message_end, until):
            return None
        message = self._view[self._begin + HEAD.size : self._begin + message_end].tobytes()
        self._begin += message_end
        return sequence, message, self._incoming.payload(place, payload_bytes)

    def _take_large(
        self, sequence: int, message_bytes: int, payload_bytes: int, until: float
    ) -> tuple[int, bytes, memoryview] | None:
        """What of it has been read is copied, and the rest is read into its own memory."""
        message, payload = bytearray(message_bytes), np.empty(payload_bytes, dtype=np.uint8).data
        for part in (memoryview(message), payload):
            num_begun = min(len(part), self._end - self._begin)
            part[:num_begun] = self._view[self._begin : self._begin + num_begun]
            self._begin += num_begun
            if not self._read(part[num_begun:], until):
                return None
        return sequence, bytes(message), payload

    def _read_on(self, num_bytes: int, until: float) -> bool:
        """Until so many bytes lie in the memory from `_begin` on."""
        missing = num_bytes - (self._end - self._begin)
        if missing <= 0:
            return True
        if self._begin:
            self._end -= self._begin
            self._memory[: self._end] = self._memory[self._begin : self._begin + self._end]
            self._begin = 0
        while self._end < num_bytes:
            num_read = self._receive(self._view[self._end :], until, self._receive_now)
            if num_read == 0:
                return False
            self._end += num_read
        return True

    def _write(self, buffers: Sequence[bytes | memoryview], num_bytes: int, timeout_seconds: float) -> None:
        try:
            num_sent = self._socket.sendmsg(buffers[:MAX_BUFFERS], (), socket.MSG_DONTWAIT)
        except BlockingIOError:
            num_sent = 0
        if num_sent == num_bytes:
            return
        until = time.monotonic() + timeout_seconds
        views = [memoryview(buffer) for buffer in buffers]
        while True:
            drop_sent(views, num_sent)
            if not views:
                return
            try:
                num_sent = self._socket.sendmsg(views[:MAX_BUFFERS], (), socket.MSG_DONTWAIT)
            except BlockingIOError:
                num_sent = 0
                _wait(self._writable, until)

    def _read(self, view: memoryview, until: float) -> bool:
        while len(view):
            num_read = self._receive(view, until)
            if num_read == 0:
                return False
            view = view[num_read:]
        return True

    def _hear(self, outgoing: SlotWriter) -> None:
        """What the worker says of the memory that it was told of, once it has. It says nothing else here before."""
        if outgoing.awaits_answer:
            with contextlib.suppress(BlockingIOError):
                if answer := self._socket.recv(1, socket.MSG_DONTWAIT):
                    outgoing.answered(answer)

    def _announce(self, timeout_seconds: float, ring: Ring, descriptor: int) -> bool:
        until = time.monotonic() + timeout_seconds
        while True:
            try:
                send_announcement(self._socket, ring, descriptor)
            except BlockingIOError:
                _wait(self._writable, until)
            else:
                return True

    def _receive_now(self, view: memoryview) -> int:
        """Heads and what comes with them: descriptors, too."""
        if self._incoming is not None:
            return self._incoming.receive(self._socket, view)
        return self._receive_bytes(view)

    def _receive_bytes(self, view: memoryview) -> int:
        return self._socket.recv_into(view, 0, socket.MSG_DONTWAIT)

    def _receive(self, view: memoryview, until: float, receive_now: Callable[[memoryview], int] | None = None) -> int:
        """0 once the worker closed its end."""
        receive_now = receive_now or self._receive_bytes
        while True:
            try:
                return receive_now(view)
            except BlockingIOError:
                _wait(self._readable, until)


def _wait(poller: select.poll, until: float) -> None:
    """Raises TimeoutError."""
    if not poller.poll(1e3 * max(0.001, until - time.monotonic())):
        raise TimeoutError("the worker neither reads nor writes")
