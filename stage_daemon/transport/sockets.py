"""The connections of an edge: one for headers, payloads and receipts, one for signs of life.

The target listens and the source connects: by a Unix socket in one host, whose abstract name leaves nothing behind, by
TCP between hosts, over mutual TLS where the services speak it. Who connects has to know the token that the two ends
exchanged; anyone else is turned away.
"""

from __future__ import annotations

import secrets
import select
import socket
from collections.abc import Callable
from dataclasses import dataclass

from access.addresses import Endpoint
from access.streams import StreamTls
from stage_daemon.transport.encrypted import EncryptedConnection
from stage_daemon.transport.pipe import PeerGone, WaitTimedOut

_TOKEN_BYTES = 16
_DATA, _LIFE = b"d", b"l"
_WELCOME = b"w"
# Who has connected and said nothing yet: past so many, the oldest is let go. A peer says who it is at once.
_MAX_NEWCOMERS = 64

Remaining = Callable[[], float]
Connection = socket.socket | EncryptedConnection


@dataclass(frozen=True, slots=True, kw_only=True)
class Sockets:
    """Blocking, without a time limit: a wait on `data` is ended by shutting it down."""

    data: Connection
    life: Connection


def local_address_towards(endpoint: Endpoint) -> str:
    """The address of this host on the way to another: what peers that meet there can reach too."""
    family, kind, protocol, _, address = socket.getaddrinfo(endpoint.host, endpoint.port, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind, protocol) as probe:
        # A datagram socket's connect sends nothing; it only picks the route.
        probe.connect(address)
        return str(probe.getsockname()[0])


class Listener:
    """The target's; a context manager. `address` and `token` are for the source."""

    def __init__(self, tcp_host: str | None, tls: StreamTls | None = None) -> None:
        """A Unix socket without a host, and never over TLS."""
        self.token = secrets.token_hex(_TOKEN_BYTES)
        self._tls = None if tcp_host is None else tls
        # Why the last one was turned away that could not show who it is.
        self._refusal = ""
        if tcp_host is None:
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            # The kernel picks a free abstract name.
            self._socket.bind("")
            self._socket.listen()
            self.address: list[str | int] = [self._socket.getsockname()[1:].decode()]
        else:
            family = socket.AF_INET6 if ":" in tcp_host else socket.AF_INET
            self._socket = socket.create_server((tcp_host, 0), family=family)
            self.address = [tcp_host, int(self._socket.getsockname()[1])]

    def __enter__(self) -> Listener:
        return self

    def __exit__(self, *raised: object) -> None:
        self._socket.close()

    def accept(self, remaining: Remaining) -> Sockets:
        """Raises WaitTimedOut, or PeerGone where a certificate is why nobody came: this end's, or the last one shown.
        Whoever says nothing, or something else, is waited for by nobody."""
        by_purpose: dict[bytes, Connection] = {}
        newcomers: dict[int, Connection] = {}
        poller = select.poll()
        poller.register(self._socket, select.POLLIN)
        try:
            while len(by_purpose) < 2:
                ready = poller.poll(1e3 * remaining())
                if not ready:
                    raise PeerGone(self._refusal) if self._refusal else WaitTimedOut("nobody connected")
                for number, _ in ready:
                    if number == self._socket.fileno():
                        if (connection := self._accept_one()) is not None:
                            newcomers[connection.fileno()] = connection
                            poller.register(connection, select.POLLIN)
                    elif number in newcomers and self._has_spoken(newcomers[number], by_purpose):
                        poller.unregister(number)
                        newcomers.pop(number)
                while len(newcomers) > _MAX_NEWCOMERS:
                    oldest = next(iter(newcomers))
                    poller.unregister(oldest)
                    newcomers.pop(oldest).close()
        finally:
            for connection in newcomers.values():
                connection.close()
        return Sockets(data=by_purpose[_DATA], life=by_purpose[_LIFE])

    def _accept_one(self) -> Connection | None:
        """None of one that has left already."""
        connection, _ = self._socket.accept()
        _without_delay(connection)
        if self._tls is None:
            return connection
        try:
            return EncryptedConnection(connection, self._tls, server_side=True)
        except ConnectionAbortedError:
            return None
        except ConnectionError as error:
            raise PeerGone(str(error)) from None

    def _has_spoken(self, connection: Connection, by_purpose: dict[bytes, Connection]) -> bool:
        """Into `by_purpose` if it may come in, else closed. What it says, it has said in one piece."""
        try:
            if isinstance(connection, EncryptedConnection):
                connection.greet(0)
            hello = connection.recv(len(self.token) + 1, socket.MSG_DONTWAIT)
            token, purpose = hello[:-1], hello[-1:]
            knows_token = secrets.compare_digest(token, self.token.encode())
            if knows_token and purpose in (_DATA, _LIFE) and purpose not in by_purpose:
                connection.send(_WELCOME)
                by_purpose[purpose] = connection
                return True
        except BlockingIOError:
            return False
        except OSError as error:
            if isinstance(connection, EncryptedConnection):
                self._refusal = f"nobody connected but whoever was turned away: {error}"
        connection.close()
        return True


def connect(address: list[str | int], token: str, remaining: Remaining, tls: StreamTls | None = None) -> Sockets:
    """The source's end. Raises WaitTimedOut or PeerGone."""
    try:
        data, life = (_connect(address, token, purpose, remaining, tls) for purpose in (_DATA, _LIFE))
        return Sockets(data=data, life=life)
    except TimeoutError:
        raise WaitTimedOut(f"no answer at {address}") from None
    except OSError as error:
        raise PeerGone(str(error)) from None


def _connect(
    address: list[str | int], token: str, purpose: bytes, remaining: Remaining, tls: StreamTls | None
) -> Connection:
    if len(address) == 1:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.settimeout(remaining())
        connection.connect(f"\0{address[0]}")
        return _introduced(connection, token, purpose, remaining)
    connection = socket.create_connection((str(address[0]), int(address[1])), timeout=remaining())
    _without_delay(connection)
    if tls is None:
        return _introduced(connection, token, purpose, remaining)
    encrypted = EncryptedConnection(connection, tls, server_side=False)
    try:
        encrypted.greet(remaining())
        return _introduced(encrypted, token, purpose, remaining)
    except OSError:
        encrypted.close()
        raise


def _introduced(connection: Connection, token: str, purpose: bytes, remaining: Remaining) -> Connection:
    """Let in by the target."""
    connection.settimeout(remaining())
    connection.send(token.encode() + purpose)
    if connection.recv(len(_WELCOME)) != _WELCOME:
        raise ConnectionError("it turned the connection away: the token is another's, or the certificate no daemon's")
    connection.settimeout(None)
    return connection


def _without_delay(connection: socket.socket) -> None:
    connection.settimeout(None)
    if connection.family != socket.AF_UNIX:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
