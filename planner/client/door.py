"""The short cut between a client and a worker of one host: microbatches by a socket of the worker's, past its daemon.

The protocol stands at WorkerDoor in stage_daemon.proto.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import struct
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from planner.client.microbatches import ALIGNMENT_BYTES
from protos.v1 import stage_daemon_pb2

INPUTS, OUTPUTS = b"i", b"o"
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_NETWORK = Path("/proc/self/ns/net")
# Sequence, bytes of the message, bytes of the tensors.
_HEAD = struct.Struct("<QQQ")
_SESSION = struct.Struct("<Q")
_WELCOME = b"w"
# IOV_MAX of Linux.
_MAX_BUFFERS = 1024
# A worker that hangs is told of by its daemon.
_CONNECT_SECONDS = 10.0
# The kernel gives at most net.core.wmem_max. By its default, a microbatch of 1 MiB wakes each end five times.
_SEND_BUFFER_BYTES = 1 << 22
# What is read of a worker at once: small results come several at a time.
_READ_BYTES = 1 << 16


def host_identity() -> str:
    """What OpenSession.host asks for; empty where no worker can be reached by a Unix socket."""
    try:
        return f"{_BOOT_ID.read_text().strip()}/{os.stat(_NETWORK).st_ino}"
    except OSError:
        return ""


class Passage:
    """One direction of one session. Raises OSError where the worker has gone or does not go on."""

    def __init__(self, door: stage_daemon_pb2.WorkerDoor, purpose: bytes, session_id: int) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._socket.settimeout(_CONNECT_SECONDS)
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER_BYTES)
            self._socket.connect(f"\0{door.socket_name}")
            self._socket.sendall(door.token.encode() + purpose + _SESSION.pack(session_id))
            if self._socket.recv(len(_WELCOME)) != _WELCOME:
                raise ConnectionError("the worker turned the session away")
            self._socket.settimeout(None)
        except BaseException:
            self._socket.close()
            raise
        self._memory = bytearray(_READ_BYTES)
        self._view = memoryview(self._memory)
        # Read from the worker, and not taken yet.
        self._begin = self._end = 0
        self._readable, self._writable = select.poll(), select.poll()
        self._readable.register(self._socket, select.POLLIN)
        self._writable.register(self._socket, select.POLLOUT)

    def fileno(self) -> int:
        return self._socket.fileno()

    def close(self) -> None:
        self._socket.close()

    def end_waits(self) -> None:
        """What another thread sends or takes fails at once, and whatever follows."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def send(self, sequence: int, message: bytes, payloads: Sequence[memoryview], timeout_seconds: float) -> None:
        """Returns once the kernel has it all, or the worker. The message need not name the sequence."""
        buffers: list[bytes | memoryview] = [b""]
        num_bytes = 0
        for payload in payloads:
            if padding := -num_bytes % ALIGNMENT_BYTES:
                buffers.append(bytes(padding))
            buffers.append(payload)
            num_bytes += padding + len(payload)
        buffers[0] = head = _HEAD.pack(sequence, len(message), num_bytes) + message
        self._write(buffers, len(head) + num_bytes, timeout_seconds)

    def is_ready(self) -> bool:
        """Something has come, be it the end. Reads it, as far as there is room."""
        if self._begin < self._end:
            return True
        self._begin = self._end = 0
        try:
            self._end = self._socket.recv_into(self._view, 0, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return False
        except OSError:
            # Whoever takes it finds out.
            pass
        return True

    def take(self, timeout_seconds: float) -> tuple[int, bytes, memoryview] | None:
        """A sequence, a message and its tensors' bytes, in memory of their own; None once the worker closed its end."""
        until = time.monotonic() + timeout_seconds
        if not self._read_on(_HEAD.size, until):
            return None
        sequence, message_bytes, payload_bytes = _HEAD.unpack_from(self._memory, self._begin)
        message_end = _HEAD.size + message_bytes
        whole = message_end + payload_bytes
        if whole > _READ_BYTES:
            self._begin += _HEAD.size
            return self._take_large(sequence, message_bytes, payload_bytes, until)
        if not self._read_on(whole, until):
            return None
        begin = self._begin
        self._begin += whole
        message = self._view[begin + _HEAD.size : begin + message_end].tobytes()
        return sequence, message, memoryview(self._memory[begin + message_end : begin + whole])

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
            num_read = self._receive(self._view[self._end :], until)
            if num_read == 0:
                return False
            self._end += num_read
        return True

    def _write(self, buffers: Sequence[bytes | memoryview], num_bytes: int, timeout_seconds: float) -> None:
        try:
            num_sent = self._socket.sendmsg(buffers[:_MAX_BUFFERS], (), socket.MSG_DONTWAIT)
        except BlockingIOError:
            num_sent = 0
        if num_sent == num_bytes:
            return
        until = time.monotonic() + timeout_seconds
        views = [memoryview(buffer) for buffer in buffers]
        while True:
            while views and num_sent >= len(views[0]):
                num_sent -= len(views.pop(0))
            if not views:
                return
            views[0] = views[0][num_sent:]
            try:
                num_sent = self._socket.sendmsg(views[:_MAX_BUFFERS], (), socket.MSG_DONTWAIT)
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

    def _receive(self, view: memoryview, until: float) -> int:
        """0 once the worker closed its end."""
        while True:
            try:
                return self._socket.recv_into(view, 0, socket.MSG_DONTWAIT)
            except BlockingIOError:
                _wait(self._readable, until)


def _wait(poller: select.poll, until: float) -> None:
    """Raises TimeoutError."""
    if not poller.poll(1e3 * max(0.001, until - time.monotonic())):
        raise TimeoutError("the worker neither reads nor writes")
