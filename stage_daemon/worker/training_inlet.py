"""A trainer on the worker's own host: its steps come by the worker's door, in shared memory, and are answered there.

The protocol stands at WorkerDoor in stage_daemon.proto. What comes is what the supervisor would hand over; where it
stands the trainer can still write, so whoever reads it copies before anything is checked.
"""

from __future__ import annotations

import contextlib
import select
import socket
import threading
from collections.abc import Callable
from typing import NamedTuple

from access.door import BEHIND, HEAD, MOST_REQUEST_BYTES, REFUSED, TAKEN, SlotReader, framed
from protos.v1 import stage_daemon_pb2
from stage_daemon.transport.streams import Copies

# A client that does not read its answer for so long is taken to have gone.
_GIVE_SECONDS = 60.0


class Request(NamedTuple):
    """A serialized TrainRequest; with a `payload` it is without its tensors' data, which lies there."""

    message: bytes | memoryview
    payload: memoryview | None = None


class TrainingInlet:
    """`on_request` is called on the inlet's own thread, for one request after the other. `copies` are of the GPU that
    trains on them."""

    def __init__(
        self,
        connection: socket.socket,
        on_request: Callable[[Request, TrainingInlet], None],
        copies: Copies | None = None,
    ) -> None:
        self._connection = connection
        self._connection.settimeout(_GIVE_SECONDS)
        self._on_request = on_request
        self._copies = copies
        self._slots = SlotReader()
        self._readable = select.poll()
        self._readable.register(connection, select.POLLIN)
        self._num_given = 0
        # A request is taken once the one before has its answer: no client holds more here than one waiting.
        self._answered = threading.Semaphore()
        self.is_over = False
        threading.Thread(target=self._run, name="trainer", daemon=True).start()

    def give(self, response: stage_daemon_pb2.TrainResponse) -> None:
        """To a client that has left, anything can be given."""
        self._num_given += 1
        with contextlib.suppress(OSError):
            self._connection.sendall(b"".join(framed(self._num_given, response.SerializeToString(), ())))
            self._answered.release()
            return
        self.end()

    def end(self) -> None:
        """What came and has not been begun is forgotten; whoever waits for an answer sees the end."""
        self.is_over = True
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)
        self._answered.release()

    def _run(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                self._on_request(self._next(), self)
        self.end()
        self._slots.close()
        self._connection.close()

    def _next(self) -> Request:
        """Raises OSError for what no trainer sends, and where nothing more comes."""
        while True:
            sequence, message_bytes, place, num_bytes = HEAD.unpack(self._read(HEAD.size))
            if sequence:
                break
            self._connection.sendall(TAKEN if self._slots.announced(place, num_bytes) else REFUSED)
        self._answered.acquire()
        if max(message_bytes, num_bytes) > MOST_REQUEST_BYTES:
            raise ConnectionError(f"a request of {message_bytes} and {num_bytes} bytes")
        message = bytes(self._read(message_bytes))
        payload = memoryview(self._read(num_bytes)) if place == BEHIND else self._payload(place, num_bytes)
        return Request(message, payload) if message else Request(payload)

    def _payload(self, place: int, num_bytes: int) -> memoryview:
        payload = self._slots.payload(place, num_bytes)
        if self._copies is not None and self._slots.ring is not None:
            self._copies.pin(self._slots.ring, place - 1, num_bytes)
        return payload

    def _read(self, num_bytes: int) -> bytearray:
        content = bytearray(num_bytes)
        unread = memoryview(content)
        while unread:
            self._readable.poll()
            try:
                num_read = self._slots.receive(self._connection, unread)
            except BlockingIOError:
                continue
            if not num_read:
                raise ConnectionError("the client has left")
            unread = unread[num_read:]
        return content
