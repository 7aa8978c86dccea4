"""A TCP connection over mutual TLS that two threads may use at once, one to read and one to write.

OpenSSL does not allow that of one connection by itself. So the socket never waits: each turn at the connection is
short and under a lock, and whoever has to wait does so outside of it.
"""

from __future__ import annotations

import select
import socket
import ssl
import threading
from collections.abc import Callable, Sequence
from typing import TypeVar

from access.errors import AccessError
from access.streams import StreamTls, check_peer, stream_context, why_failed

# What one record of TLS holds: the header of a small message and its payload travel in one.
_RECORD_BYTES = 1 << 14

Result = TypeVar("Result")


class EncryptedConnection:
    """What `stream` and `lifeline` ask of a socket; `flags` may hold MSG_DONTWAIT."""

    def __init__(self, connection: socket.socket, tls: StreamTls, *, server_side: bool) -> None:
        """Takes the socket over; no byte has crossed it yet. Raises ConnectionError where the files are not sound, and
        ConnectionAbortedError where the peer has left."""
        connection.setblocking(False)
        try:
            context = stream_context(tls, server_side=server_side)
        except AccessError as error:
            connection.close()
            raise ConnectionError(error.message) from None
        self._tls = tls
        try:
            self._socket = context.wrap_socket(connection, server_side=server_side, do_handshake_on_connect=False)
        except OSError as error:
            connection.close()
            raise ConnectionAbortedError(str(error)) from None
        self._lock = threading.Lock()
        self._timeout_seconds: float | None = None
        self._is_known = False

    def fileno(self) -> int:
        return self._socket.fileno()

    def settimeout(self, seconds: float | None) -> None:
        """Of each wait but the handshake's."""
        self._timeout_seconds = seconds

    def greet(self, timeout_seconds: float) -> None:
        """The handshake. Raises ConnectionError that says why it failed, TimeoutError, or BlockingIOError for 0."""
        if self._is_known:
            return
        try:
            self._patiently(self._socket.do_handshake, timeout_seconds)
            check_peer(self._socket, self._tls)
        except AccessError as error:
            raise ConnectionError(error.message) from None
        except ssl.SSLError as error:
            raise ConnectionError(why_failed(error)) from None
        self._is_known = True

    def send(self, content: bytes, flags: int = 0) -> int:
        return self.sendmsg((content,), (), flags)

    def sendmsg(self, buffers: Sequence[bytes | memoryview], ancillary: Sequence[object] = (), flags: int = 0) -> int:
        """At most a record; the number of bytes that were taken."""
        assert not ancillary, "nothing but bytes crosses between hosts"
        record = _record(buffers)
        return self._patiently(lambda: self._socket.send(record), self._seconds(flags))

    def recv(self, num_bytes: int, flags: int = 0) -> bytes:
        try:
            return self._patiently(lambda: self._received(num_bytes), self._seconds(flags))
        except ssl.SSLError as error:
            # A target refuses this end's certificate behind the handshake.
            raise ConnectionError(why_failed(error)) from None

    def recv_into(self, view: memoryview) -> int:
        return self._patiently(lambda: self._socket.recv_into(view), self._timeout_seconds)

    def shutdown(self, how: int) -> None:
        """Ends whatever waits. Beside TLS: the peer sees the end of the connection."""
        socket.socket.shutdown(self._socket, how)

    def close(self) -> None:
        self._socket.close()

    def _received(self, num_bytes: int) -> bytes:
        content: bytes = self._socket.recv(num_bytes)
        return content

    def _seconds(self, flags: int) -> float | None:
        return 0.0 if flags & socket.MSG_DONTWAIT else self._timeout_seconds

    def _patiently(self, attempt: Callable[[], Result], timeout_seconds: float | None) -> Result:
        while True:
            try:
                with self._lock:
                    return attempt()
            except ssl.SSLWantReadError:
                event = select.POLLIN
            except ssl.SSLWantWriteError:
                event = select.POLLOUT
            if timeout_seconds == 0:
                raise BlockingIOError
            poller = select.poll()
            poller.register(self._socket, event)
            if not poller.poll(None if timeout_seconds is None else 1e3 * timeout_seconds):
                raise TimeoutError


def _record(buffers: Sequence[bytes | memoryview]) -> bytes | memoryview:
    if len(buffers) == 1 or len(buffers[0]) >= _RECORD_BYTES:
        return buffers[0]
    pieces, room = [], _RECORD_BYTES
    for buffer in buffers:
        pieces.append(buffer[:room])
        room -= len(pieces[-1])
        if not room:
            break
    return b"".join(pieces)
