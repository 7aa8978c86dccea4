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
            self._socket.connect(f"\0{door.socket_name}")
            self._socket.sendall(door.token.encode() + purpose + _SESSION.pack(session_id))
            if self._socket.recv(len(_WELCOME)) != _WELCOME:
                raise ConnectionError("the worker turned the session away")
            self._socket.settimeout(None)
        except BaseException:
            self._socket.close()
            raise
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
        buffers = [memoryview(message)]
        num_bytes = 0
        for payload in payloads:
            if padding := -num_bytes % ALIGNMENT_BYTES:
                buffers.append(memoryview(bytes(padding)))
            buffers.append(payload)
            num_bytes += padding + len(payload)
        self._write([memoryview(_HEAD.pack(sequence, len(message), num_bytes)), *buffers], timeout_seconds)

    def take(self, timeout_seconds: float) -> tuple[int, bytes, memoryview] | None:
        """A sequence, a message and its tensors' bytes, in memory of their own; None once the worker closed its end."""
        until = time.monotonic() + timeout_seconds
        head = bytearray(_HEAD.size)
        if not self._read(memoryview(head), until):
            return None
        sequence, message_bytes, payload_bytes = _HEAD.unpack(head)
        message, payload = bytearray(message_bytes), np.empty(payload_bytes, dtype=np.uint8).data
        if not (self._read(memoryview(message), until) and self._read(payload, until)):
            return None
        return sequence, bytes(message), payload

    def _write(self, buffers: list[memoryview], timeout_seconds: float) -> None:
        until = time.monotonic() + timeout_seconds
        while buffers := [buffer for buffer in buffers if len(buffer)]:
            try:
                sent = self._socket.sendmsg(buffers[:_MAX_BUFFERS], (), socket.MSG_DONTWAIT)
            except BlockingIOError:
                _wait(self._writable, until)
                continue
            while buffers and sent >= len(buffers[0]):
                sent -= len(buffers.pop(0))
            if buffers:
                buffers[0] = buffers[0][sent:]

    def _read(self, view: memoryview, until: float) -> bool:
        while len(view):
            try:
                num_read = self._socket.recv_into(view, 0, socket.MSG_DONTWAIT)
            except BlockingIOError:
                _wait(self._readable, until)
                continue
            if num_read == 0:
                return False
            view = view[num_read:]
        return True


def _wait(poller: select.poll, until: float) -> None:
    """Raises TimeoutError."""
    if not poller.poll(1e3 * max(0.001, until - time.monotonic())):
        raise TimeoutError("the worker neither reads nor writes")
