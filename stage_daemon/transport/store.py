"""A worker's end of the store at which a generation's workers meet: see store_server for what goes over the wire."""

from __future__ import annotations

import hmac
import secrets
import socket
import threading
import time
from collections.abc import Sequence
from datetime import timedelta

from torch._C._distributed_c10d import Store

from stage_daemon.transport.pipe import PeerGone, WaitTimedOut
from stage_daemon.transport.store_server import ANSWER, NONCE_BYTES, PROOF_BYTES, REQUEST, Operation, proof


class MeetingStore(Store):
    """What torch calls a store, so that NCCL can meet there too. Threads may share it.

    torch does not keep a store that is written in Python alive: whoever hands it to torch keeps it.
    """

    def __init__(self, host: str, port: int, key: bytes, timeout_seconds: float) -> None:
        """Raises WaitTimedOut or PeerGone."""
        super().__init__()
        self._address = (host, port)
        self._key = key
        self._timeout_seconds = timeout_seconds
        self._lock = threading.Lock()
        self._connection = self._connect(timeout_seconds)

    def set(self, key: str, value: str | bytes) -> None:
        self._ask(Operation.SET, key, value.encode() if isinstance(value, str) else bytes(value))

    def get(self, key: str) -> bytes:
        """Waits until it is there."""
        return self._wait_for(key, self._timeout_seconds)

    def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:
        until = time.monotonic() + (self._timeout_seconds if timeout is None else timeout.total_seconds())
        for key in keys:
            self._wait_for(key, until - time.monotonic())

    def check(self, keys: Sequence[str]) -> bool:
        return all(self._ask(Operation.CHECK, key) == b"\1" for key in keys)

    def add(self, key: str, number: int) -> int:
        return int(self._ask(Operation.ADD, key, str(number).encode()))

    def delete_key(self, key: str) -> bool:
        return self._ask(Operation.DELETE, key) == b"\1"

    def close(self) -> None:
        self._connection.close()

    def _ask(self, operation: Operation, key: str, value: bytes = b"") -> bytes:
        with self._lock:
            return _asked(self._connection, operation, key, value)

    def _wait_for(self, key: str, timeout_seconds: float) -> bytes:
        """By a connection of its own: others go on meanwhile, and a wait that is given up leaves nothing behind."""
        with self._connect(timeout_seconds) as connection:
            return _asked(connection, Operation.GET, key, b"")

    def _connect(self, timeout_seconds: float) -> socket.socket:
        if timeout_seconds <= 0:
            raise WaitTimedOut("no time is left")
        try:
            connection = socket.create_connection(self._address, timeout=timeout_seconds)
        except TimeoutError:
            raise WaitTimedOut(f"no answer at {self._address}") from None
        except OSError as error:
            raise PeerGone(str(error)) from None
        try:
            self._prove(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    def _prove(self, connection: socket.socket) -> None:
        nonce = secrets.token_bytes(NONCE_BYTES)
        server_nonce = _read(connection, NONCE_BYTES)
        connection.sendall(nonce + proof(self._key, b"caller", server_nonce, nonce))
        if not hmac.compare_digest(_read(connection, PROOF_BYTES), proof(self._key, b"server", server_nonce, nonce)):
            raise PeerGone("what answers is not the deployment's rendezvous")


def _asked(connection: socket.socket, operation: Operation, key: str, value: bytes) -> bytes:
    encoded = key.encode()
    try:
        connection.sendall(REQUEST.pack(operation, len(encoded), len(value)) + encoded + value)
    except TimeoutError:
        raise WaitTimedOut(f"asking for {key}") from None
    except OSError as error:
        raise PeerGone(str(error)) from None
    (num_bytes,) = ANSWER.unpack(_read(connection, ANSWER.size))
    return _read(connection, num_bytes)


def _read(connection: socket.socket, num_bytes: int) -> bytes:
    parts: list[bytes] = []
    while num_bytes:
        try:
            part = connection.recv(num_bytes)
        except TimeoutError:
            raise WaitTimedOut("the rendezvous has not answered") from None
        except OSError as error:
            raise PeerGone(str(error)) from None
        if not part:
            raise PeerGone("the rendezvous closed the connection: it does not know this worker's deployment")
        parts.append(part)
        num_bytes -= len(part)
    return b"".join(parts)
