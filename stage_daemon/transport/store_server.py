"""The store at which the workers of one generation find each other: keys and bytes, for who proves to know its key.

torch's own TCPStore asks nobody who he is, and who reaches it reads and writes what opens the edges. This one sends a
nonce first, and reads no more of a caller than an answer to it until that answer has been found right:

    server: 16 bytes, its nonce
    caller: 16 bytes, its nonce, and 32 bytes, HMAC-SHA256(key, "caller" + both nonces)
    server: 32 bytes, HMAC-SHA256(key, "server" + both nonces)

From then on requests (operation, bytes of the key, bytes of the value; then both) and answers (bytes, then these). A
GET waits for its key, so that its answer may come late; whoever is tired of it closes the connection. No torch here:
the supervisor serves it.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import secrets
import selectors
import socket
import struct
import threading
from enum import IntEnum

NONCE_BYTES = 16
PROOF_BYTES = 32
HELLO_BYTES = NONCE_BYTES + PROOF_BYTES
REQUEST = struct.Struct("<BII")
ANSWER = struct.Struct("<I")
MAX_KEY_BYTES = 4096
MAX_VALUE_BYTES = 1 << 20
# Who has connected and proved nothing yet: past so many, the oldest is let go. A worker answers at once.
MAX_NEWCOMERS = 64
_READ_BYTES = 1 << 16
# A worker that does not read its answers must not hold up the others for longer.
_SEND_SECONDS = 5.0


class Operation(IntEnum):
    SET = 1
    # Waits until the key is there.
    GET = 2
    # Whether the key is there, as one byte.
    CHECK = 3
    # Adds a decimal number to that of the key, 0 where there is none, and gives the sum.
    ADD = 4
    DELETE = 5


def proof(key: bytes, role: bytes, server_nonce: bytes, caller_nonce: bytes) -> bytes:
    return hmac.digest(key, role + server_nonce + caller_nonce, hashlib.sha256)


class _Caller:
    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.nonce = secrets.token_bytes(NONCE_BYTES)
        self.unread = b""
        self.is_known = False
        self.awaited = b""


class _BadRequest(Exception):
    """Not what a worker sends."""


class StoreServer:
    """Serves from its making to `close`, on a thread of its own, a free port and the one interface of `host`."""

    def __init__(self, host: str, key: bytes) -> None:
        """Raises OSError."""
        self._key = key
        self._values: dict[bytes, bytes] = {}
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._listener = socket.create_server((host, 0), family=family)
        self._listener.setblocking(False)
        self.port = int(self._listener.getsockname()[1])
        self._ended, self._end_here = socket.socketpair()
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._selector.register(self._ended, selectors.EVENT_READ)
        self._newcomers: dict[_Caller, None] = {}
        self._thread = threading.Thread(target=self._serve, name="rendezvous", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Idempotent; does not wait for the thread."""
        self._end_here.close()

    def _serve(self) -> None:
        while True:
            for key, _ in self._selector.select():
                if key.fileobj is self._ended:
                    self._tear_down()
                    return
                if key.fileobj is self._listener:
                    self._greet()
                elif not self._hear(key.data):
                    self._drop(key.data)

    def _greet(self) -> None:
        with contextlib.suppress(OSError):
            connection, _ = self._listener.accept()
            caller = _Caller(connection)
            connection.setblocking(False)
            self._selector.register(connection, selectors.EVENT_READ, caller)
            self._newcomers[caller] = None
            connection.send(caller.nonce)
        while len(self._newcomers) > MAX_NEWCOMERS:
            self._drop(next(iter(self._newcomers)))

    def _hear(self, caller: _Caller) -> bool:
        """False where the caller has left, or is none that belongs here."""
        most_bytes = _READ_BYTES if caller.is_known else HELLO_BYTES - len(caller.unread)
        try:
            content = caller.connection.recv(most_bytes)
            caller.unread += content
            if not caller.is_known and len(caller.unread) == HELLO_BYTES:
                self._recognise(caller)
            while caller.is_known and self._take_request(caller):
                pass
        except BlockingIOError:
            return True
        except (OSError, ValueError, _BadRequest):
            return False
        return bool(content)

    def _recognise(self, caller: _Caller) -> None:
        nonce, their_proof = caller.unread[:NONCE_BYTES], caller.unread[NONCE_BYTES:]
        if not hmac.compare_digest(their_proof, proof(self._key, b"caller", caller.nonce, nonce)):
            raise _BadRequest
        caller.is_known, caller.unread = True, b""
        del self._newcomers[caller]
        self._send(caller, proof(self._key, b"server", caller.nonce, nonce))

    def _take_request(self, caller: _Caller) -> bool:
        """False where no whole one is there."""
        if len(caller.unread) < REQUEST.size:
            return False
        operation, key_bytes, value_bytes = REQUEST.unpack_from(caller.unread)
        if key_bytes > MAX_KEY_BYTES or value_bytes > MAX_VALUE_BYTES or caller.awaited:
            raise _BadRequest
        end = REQUEST.size + key_bytes + value_bytes
        if len(caller.unread) < end:
            return False
        key = caller.unread[REQUEST.size : REQUEST.size + key_bytes]
        value = caller.unread[REQUEST.size + key_bytes : end]
        caller.unread = caller.unread[end:]
        self._answer(caller, Operation(operation), key, value)
        return True

    def _answer(self, caller: _Caller, operation: Operation, key: bytes, value: bytes) -> None:
        answer = b""
        if operation is Operation.SET:
            self._set(key, value)
        elif operation is Operation.GET:
            if key not in self._values:
                caller.awaited = key
                return
            answer = self._values[key]
        elif operation is Operation.CHECK:
            answer = bytes([key in self._values])
        elif operation is Operation.ADD:
            answer = str(int(self._values.get(key, b"0")) + int(value)).encode()
            self._set(key, answer)
        else:
            answer = bytes([self._values.pop(key, None) is not None])
        self._send(caller, ANSWER.pack(len(answer)) + answer)

    def _set(self, key: bytes, value: bytes) -> None:
        self._values[key] = value
        for registered in tuple(self._selector.get_map().values()):
            caller = registered.data
            if caller is not None and caller.awaited == key:
                caller.awaited = b""
                try:
                    self._send(caller, ANSWER.pack(len(value)) + value)
                except OSError:
                    self._drop(caller)

    def _send(self, caller: _Caller, content: bytes) -> None:
        caller.connection.settimeout(_SEND_SECONDS)
        caller.connection.sendall(content)
        caller.connection.setblocking(False)

    def _drop(self, caller: _Caller) -> None:
        self._newcomers.pop(caller, None)
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(caller.connection)
        caller.connection.close()

    def _tear_down(self) -> None:
        for registered in tuple(self._selector.get_map().values()):
            if registered.data is not None:
                registered.data.connection.close()
        self._selector.close()
        self._listener.close()
        self._ended.close()
