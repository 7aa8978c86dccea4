"""Connecting: both connections come from who knows the token, and from nobody else."""

from __future__ import annotations

import contextlib
import socket
import threading

import pytest

from access.addresses import Endpoint
from stage_daemon.transport.pipe import PeerGone, WaitTimedOut
from stage_daemon.transport.sockets import Listener, Sockets, connect, local_address_towards
from tests.waiting import WAIT_SECONDS


def patient() -> float:
    return WAIT_SECONDS


def accept(listener: Listener) -> tuple[threading.Thread, list[Sockets]]:
    accepted: list[Sockets] = []
    thread = threading.Thread(target=lambda: accepted.append(listener.accept(patient)), daemon=True)
    thread.start()
    return thread, accepted


def open_socket(address: list[str | int]) -> socket.socket:
    if len(address) == 2:
        return socket.create_connection((str(address[0]), int(address[1])))
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(f"\0{address[0]}")
    return connection


@pytest.mark.parametrize("tcp_host", [None, "127.0.0.1", "::1"])
def test_both_connections_are_made(tcp_host: str | None) -> None:
    with Listener(tcp_host) as listener:
        thread, accepted = accept(listener)
        ours = connect(listener.address, listener.token, patient)
        thread.join(WAIT_SECONDS)
    (theirs,) = accepted
    ours.data.sendall(b"data")
    ours.life.sendall(b"life")
    assert (theirs.data.recv(4), theirs.life.recv(4)) == (b"data", b"life")
    assert ours.data.gettimeout() is theirs.life.gettimeout() is None


@pytest.mark.parametrize("tcp_host", [None, "127.0.0.1"])
@pytest.mark.parametrize("hello", [b"0" * 32 + b"d", b"short", b""])
def test_strangers_are_turned_away(tcp_host: str | None, hello: bytes) -> None:
    with Listener(tcp_host) as listener:
        thread, accepted = accept(listener)
        with open_socket(listener.address) as stranger:
            stranger.sendall(hello)
            stranger.shutdown(socket.SHUT_WR)
            assert stranger.recv(1) == b""
        connect(listener.address, listener.token, patient)
        thread.join(WAIT_SECONDS)
    assert len(accepted) == 1


@pytest.mark.parametrize("num_silent", [1, 70])
def test_one_that_says_nothing_delays_nobody(num_silent: int) -> None:
    with Listener("127.0.0.1") as listener, contextlib.ExitStack() as strangers:
        silent = [strangers.enter_context(open_socket(listener.address)) for _ in range(num_silent)]
        thread, accepted = accept(listener)
        connect(listener.address, listener.token, patient)
        thread.join(WAIT_SECONDS)
        assert len(accepted) == 1
        for connection in silent:
            assert connection.recv(1) == b""


def test_one_connection_for_each_purpose() -> None:
    with Listener(None) as listener:
        thread, accepted = accept(listener)
        with open_socket(listener.address) as first, open_socket(listener.address) as second:
            for connection in (first, second):
                connection.sendall(listener.token.encode() + b"d")
            assert first.recv(1) == b"w"
            assert second.recv(2) == b""
            with open_socket(listener.address) as third:
                third.sendall(listener.token.encode() + b"l")
                thread.join(WAIT_SECONDS)
    assert len(accepted) == 1


def test_nobody_comes() -> None:
    with Listener(None) as listener, pytest.raises(WaitTimedOut):
        listener.accept(lambda: 0.05)


def test_nobody_listens() -> None:
    with Listener(None) as listener:
        address = listener.address
    with pytest.raises(PeerGone):
        connect(address, listener.token, patient)


def test_a_peer_that_does_not_answer() -> None:
    with Listener(None) as listener, pytest.raises(WaitTimedOut):
        connect(listener.address, listener.token, lambda: 0.05)


def test_this_host_is_reached_by_its_own_address() -> None:
    assert local_address_towards(Endpoint(host="127.0.0.1", port=1)) == "127.0.0.1"
