"""TLS between workers: who is let in, what whoever is not is told, and two threads at one connection."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
import torch

from access.peers import CLIENT_ROLE, DAEMON_ROLE
from access.streams import StreamTls
from access.tickets import purpose_key
from stage_daemon.errors import DaemonError, EdgeMismatch
from stage_daemon.transport.connect import open_channels
from stage_daemon.transport.encrypted import EncryptedConnection
from stage_daemon.transport.pipe import PeerGone, WaitTimedOut
from stage_daemon.transport.sockets import Listener, connect
from stage_daemon.transport.store_server import StoreServer
from tests.access.certificates import Certificates
from tests.stage_daemon.transport.edges import Failures, edge_of, meeting, tensor
from tests.waiting import WAIT_SECONDS

HERE = "127.0.0.1"


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates.of(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def daemon(certificates: Certificates) -> StreamTls:
    return StreamTls(files=certificates.issue("daemon"))


@pytest.fixture
def pair(daemon: StreamTls) -> Iterator[tuple[EncryptedConnection, EncryptedConnection]]:
    """Both ends of a connection, which know each other."""
    one, other = socket.socketpair()
    target = EncryptedConnection(one, daemon, server_side=True)
    source = EncryptedConnection(other, daemon, server_side=False)
    greeting = threading.Thread(target=target.greet, args=(WAIT_SECONDS,), daemon=True)
    greeting.start()
    source.greet(WAIT_SECONDS)
    greeting.join(WAIT_SECONDS)
    yield target, source
    target.close()
    source.close()


def all_of(send: Callable[[memoryview], int], content: bytes) -> None:
    view = memoryview(content)
    while view:
        view = view[send(view) :]


def exactly(connection: EncryptedConnection, num_bytes: int) -> bytes:
    received = bytearray(num_bytes)
    view = memoryview(received)
    while view:
        view = view[connection.recv_into(view) :]
    return bytes(received)


def test_a_header_and_a_small_payload_are_one_record_and_a_large_one_is_not(
    pair: tuple[EncryptedConnection, EncryptedConnection],
) -> None:
    target, source = pair
    assert source.sendmsg([b"head", memoryview(b"payload"), b""]) == 11
    assert target.recv(100) == b"headpayload"
    assert source.sendmsg([b"head", bytes(1 << 20)]) == 1 << 14
    assert exactly(target, 1 << 14) == b"head" + bytes((1 << 14) - 4)


def test_both_ways_at_once_whatever_the_socket_holds(
    pair: tuple[EncryptedConnection, EncryptedConnection],
) -> None:
    """As a receiver does it: one thread takes payloads ahead while another sends receipts."""
    payload = torch.randint(256, (8 << 20,), dtype=torch.uint8).numpy().tobytes()
    received: dict[str, bytes] = {}

    def read(name: str, connection: EncryptedConnection) -> None:
        received[name] = exactly(connection, len(payload))

    def write(connection: EncryptedConnection) -> None:
        all_of(lambda view: connection.sendmsg([view]), payload)

    threads = [threading.Thread(target=read, args=(str(index), end), daemon=True) for index, end in enumerate(pair)]
    threads += [threading.Thread(target=write, args=(end,), daemon=True) for end in pair]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_SECONDS)
    assert received == {"0": payload, "1": payload}


def test_a_wait_ends_with_the_connection_and_nobody_waits_who_does_not_want_to(
    pair: tuple[EncryptedConnection, EncryptedConnection],
) -> None:
    target, source = pair
    with pytest.raises(BlockingIOError):
        target.recv(1, socket.MSG_DONTWAIT)
    target.settimeout(0.01)
    with pytest.raises(TimeoutError):
        target.recv(1)
    target.settimeout(None)
    waiting = threading.Thread(target=lambda: target.recv(1), daemon=True)
    waiting.start()
    source.shutdown(socket.SHUT_RDWR)
    waiting.join(WAIT_SECONDS)
    assert not waiting.is_alive()


def refused_with(listening: StreamTls, connecting: StreamTls | None) -> tuple[Exception, str]:
    """What the source is told, and what the target says once it has waited in vain."""
    messages: list[str] = []
    gave_up = threading.Event()

    def accept(listener: Listener) -> None:
        try:
            listener.accept(lambda: 0.05 if gave_up.is_set() else WAIT_SECONDS)
        except (PeerGone, WaitTimedOut) as error:
            messages.append(str(error))

    with Listener(HERE, listening) as listener:
        thread = threading.Thread(target=accept, args=(listener,), daemon=True)
        thread.start()
        with pytest.raises((PeerGone, WaitTimedOut)) as raised:
            connect(listener.address, listener.token, lambda: WAIT_SECONDS, connecting)
        gave_up.set()
        # Somebody who says nothing: the target's wait begins anew, and is short now.
        with socket.create_connection((str(listener.address[0]), int(listener.address[1]))):
            thread.join(WAIT_SECONDS)
    return raised.value, messages[0]


def test_certificates_that_are_not_a_daemons_are_refused(certificates: Certificates, daemon: StreamTls) -> None:
    client = StreamTls(files=certificates.issue("client"))
    source, target = refused_with(daemon, client)
    assert f"is for {CLIENT_ROLE}" in target
    assert f"needs {DAEMON_ROLE}: the certificate of a daemon" in target
    assert "the certificate no daemon's" in str(source)
    # A client that listens as if it were a daemon.
    source, _ = refused_with(StreamTls(files=client.files, peer_identity=DAEMON_ROLE), daemon)
    assert f"needs {DAEMON_ROLE}: the certificate of a daemon" in str(source)


def test_an_authority_that_is_not_known_is_named(daemon: StreamTls, tmp_path: Path) -> None:
    stranger = StreamTls(files=Certificates.of(tmp_path / "other").issue("daemon"))
    source, target = refused_with(daemon, stranger)
    assert "the peer's certificate is refused" in str(source)
    assert "does not trust the authority" in target


def test_a_certificate_that_has_expired_is_refused_by_its_own_end(certificates: Certificates) -> None:
    expired = StreamTls(files=certificates.issue("daemon", name="expired", valid=-timedelta(minutes=1)))
    one, other = socket.socketpair()
    with other, pytest.raises(ConnectionError, match="expired on"):
        EncryptedConnection(one, expired, server_side=False)


def test_a_certificate_that_was_revoked_is_refused(certificates: Certificates, daemon: StreamTls) -> None:
    stolen = certificates.issue("daemon", name="stolen")
    knows = StreamTls(files=replace(daemon.files, revoked=certificates.revoke(stolen)))
    source, target = refused_with(knows, StreamTls(files=stolen))
    assert "was revoked" in target
    source, _ = refused_with(StreamTls(files=stolen), knows)
    assert "was revoked" in str(source)


def test_plain_text_is_turned_away(daemon: StreamTls) -> None:
    source, target = refused_with(daemon, None)
    assert isinstance(source, PeerGone)
    assert "plain text" in target


@pytest.mark.parametrize("hello", [b"", b"GET / HTTP/1.1"])
def test_one_that_has_hung_up_keeps_nobody_out(daemon: StreamTls, hello: bytes) -> None:
    """As whoever looks for open ports: with a reset, before its turn has come."""
    sockets: list[object] = []
    with Listener(HERE, daemon) as listener:
        with socket.create_connection((HERE, int(listener.address[1]))) as stranger:
            stranger.sendall(hello)
            stranger.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        thread = threading.Thread(
            target=lambda: sockets.append(connect(listener.address, listener.token, lambda: WAIT_SECONDS, daemon)),
            daemon=True,
        )
        thread.start()
        listener.accept(lambda: WAIT_SECONDS)
        thread.join(WAIT_SECONDS)
    assert len(sockets) == 1


@pytest.mark.services
def test_one_end_with_certificates_and_one_without_are_named(daemon: StreamTls) -> None:
    raised: list[DaemonError] = []
    edge = edge_of(tensor(1, "hidden", torch.float32, "b", "s"))
    with ExitStack() as stack:
        store = StoreServer(HERE, purpose_key(b"", "rendezvous"))
        stack.callback(store.close)

        def open_end(device_id: str, tls: StreamTls | None) -> None:
            try:
                open_channels([edge], device_id, meeting(store.port, WAIT_SECONDS, Failures(), host="", tls=tls))
            except DaemonError as error:
                raised.append(error)

        ends = ((edge.source_device_id, daemon), (edge.target_device_id, None))
        threads = [threading.Thread(target=open_end, args=end, daemon=True) for end in ends]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(WAIT_SECONDS)
    assert [type(error) for error in raised] == [EdgeMismatch, EdgeMismatch]
    assert all("start both daemons with certificates" in error.message for error in raised)


def test_what_crosses_cannot_be_read(daemon: StreamTls) -> None:
    """A wire in between sees the tensors of a plain connection, and not of this one."""
    secret, wire_bytes = b"the weights of a good model" * 20, bytearray()
    source_end, wire_source = socket.socketpair()
    wire_target, target_end = socket.socketpair()

    def relay(one: socket.socket, other: socket.socket) -> None:
        with suppress(OSError):
            while content := one.recv(1 << 16):
                wire_bytes.extend(content)
                other.sendall(content)

    for ends in ((wire_source, wire_target), (wire_target, wire_source)):
        threading.Thread(target=relay, args=ends, daemon=True).start()
    target = EncryptedConnection(target_end, daemon, server_side=True)
    source = EncryptedConnection(source_end, daemon, server_side=False)
    greeting = threading.Thread(target=target.greet, args=(WAIT_SECONDS,), daemon=True)
    greeting.start()
    source.greet(WAIT_SECONDS)
    greeting.join(WAIT_SECONDS)
    source.sendmsg([secret])
    assert exactly(target, len(secret)) == secret
    assert len(wire_bytes) > len(secret)
    assert secret not in wire_bytes
    for end in (source, target, wire_source, wire_target):
        end.close()
