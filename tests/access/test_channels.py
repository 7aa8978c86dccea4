"""Real gRPC ends over TLS: strangers, rotation on both ends, and what is said of a connection that fails."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import grpc
import psutil
import pytest

from access.authority import create_authority
from access.channels import open_aio_channel, open_channel, server_credentials, server_options, until_disconnected
from access.diagnosis import why_refused
from access.errors import AccessError
from access.files import TlsFiles, WatchedCredentials
from access.peers import CLIENT_ROLE, Peer, peer_of
from tests.access.certificates import Certificates
from tests.waiting import WAIT_SECONDS


class Echo(grpc.GenericRpcHandler):
    """`/echo/once` answers with the request, `/echo/again` with it for each of its bytes, as the test lets it."""

    def __init__(self) -> None:
        self.go_on = asyncio.Event()
        self.peers: list[Peer | None] = []

    def service(self, details: grpc.HandlerCallDetails) -> Any:
        if details.method == "/echo/once":
            return grpc.unary_unary_rpc_method_handler(self._once)
        return grpc.unary_stream_rpc_method_handler(self._again)

    async def _once(self, request: bytes, context: grpc.aio.ServicerContext[Any, Any]) -> bytes:
        self.peers.append(peer_of(context.auth_context()))
        return request

    async def _again(self, request: bytes, context: grpc.aio.ServicerContext[Any, Any]) -> AsyncIterator[bytes]:
        for _ in request:
            yield request
            await self.go_on.wait()


@contextlib.asynccontextmanager
async def serving(files: TlsFiles, handshake_seconds: float = WAIT_SECONDS) -> AsyncIterator[tuple[Echo, str]]:
    echo = Echo()
    server = grpc.aio.server(options=server_options(handshake_seconds))
    server.add_generic_rpc_handlers((echo,))
    port = server.add_secure_port("127.0.0.1:0", server_credentials(WatchedCredentials(files)))
    await server.start()
    try:
        yield echo, f"127.0.0.1:{port}"
    finally:
        await server.stop(0)


async def call(address: str, files: TlsFiles | None) -> bytes:
    channel = open_aio_channel(address, WatchedCredentials(files) if files else None)
    try:
        answer: bytes = await channel.unary_unary("/echo/once")(b"hello", timeout=WAIT_SECONDS)
        return answer
    finally:
        await channel.close()


async def test_the_server_knows_whom_it_talks_to(certificates: Certificates) -> None:
    async with serving(certificates.issue("planner")) as (echo, address):
        assert await call(address, certificates.issue("client")) == b"hello"
    [peer] = echo.peers
    assert peer is not None
    assert peer.names == (CLIENT_ROLE, "127.0.0.1", "localhost")


async def test_strangers_get_no_answer(certificates: Certificates, tmp_path: Path) -> None:
    create_authority(tmp_path / "other", timedelta(days=1))
    other = Certificates(folder=tmp_path / "other").issue("client")
    trusting = TlsFiles(certificate=other.certificate, key=other.key, authorities=certificates.folder / "ca.crt")
    async with serving(certificates.issue("planner")) as (echo, address):
        for stranger in (None, other, trusting):
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await call(address, stranger)
            assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
    assert not echo.peers


async def test_a_stranger_who_says_nothing_is_let_go(certificates: Certificates) -> None:
    async with serving(certificates.issue("planner"), handshake_seconds=0.1) as (_, address):
        host, _, port = address.rpartition(":")
        with socket.create_connection((host, int(port)), timeout=WAIT_SECONDS) as silent:
            assert await asyncio.to_thread(silent.recv, 1) == b""


async def test_no_call_fails_while_certificates_are_replaced_on_both_ends(certificates: Certificates) -> None:
    own = certificates.issue("client")
    async with serving(certificates.issue("planner")) as (echo, address):
        channels = [open_aio_channel(address, WatchedCredentials(own)), open_channel(address, WatchedCredentials(own))]
        once = [channel.unary_unary("/echo/once") for channel in channels]
        streams = [channel.unary_stream("/echo/again")(b"abc") for channel in channels]
        first = [await streams[0].read(), await asyncio.to_thread(next, streams[1])]
        for _ in range(10):
            certificates.issue("planner")
            certificates.issue("client")
            assert await once[0](b"x", timeout=WAIT_SECONDS) == b"x"
            assert await asyncio.to_thread(once[1], b"x", timeout=WAIT_SECONDS) == b"x"
        echo.go_on.set()
        rest = [[await streams[0].read() for _ in range(2)], await asyncio.to_thread(list, streams[1])]
        open_connections = [
            connection
            for connection in psutil.Process().net_connections("tcp")
            if connection.raddr and f"127.0.0.1:{connection.raddr.port}" == address
        ]
        await channels[0].close()
        channels[1].close()
    assert first == [b"abc", b"abc"]
    assert rest == [[b"abc", b"abc"], [b"abc", b"abc"]]
    # The newest, and at most the one before that is being closed, of each.
    assert len(open_connections) <= 4


async def test_a_new_authority_is_taken_over_without_a_failed_call(certificates: Certificates, tmp_path: Path) -> None:
    served, own = certificates.issue("planner"), certificates.issue("client")
    successor = Certificates.of(tmp_path / "successor")
    both = served.authorities.read_bytes() + (successor.folder / "ca.crt").read_bytes()
    async with serving(served) as (_, address):
        channel = open_aio_channel(address, WatchedCredentials(own))
        once = channel.unary_unary("/echo/once")
        assert await once(b"1", timeout=WAIT_SECONDS) == b"1"
        served.authorities.write_bytes(both)
        assert await once(b"2", timeout=WAIT_SECONDS) == b"2"
        for role, files in (("planner", served), ("client", own)):
            renewed = successor.issue(role)
            files.key.write_bytes(renewed.key.read_bytes())
            files.certificate.write_bytes(renewed.certificate.read_bytes())
            assert await once(b"3", timeout=WAIT_SECONDS) == b"3"
        await channel.close()


async def test_a_connection_that_breaks_is_noticed_and_one_that_stands_is_not(certificates: Certificates) -> None:
    async with serving(certificates.issue("planner")) as (_, address):
        channel = open_aio_channel(address, WatchedCredentials(certificates.issue("client")))
        connected = asyncio.create_task(until_disconnected(channel))
        assert await channel.unary_unary("/echo/once")(b"1", timeout=WAIT_SECONDS) == b"1"
        certificates.issue("client")
        assert await channel.unary_unary("/echo/once")(b"2", timeout=WAIT_SECONDS) == b"2"
        assert not connected.done()
    await asyncio.wait_for(connected, WAIT_SECONDS)
    # Nor can it be made again.
    await asyncio.wait_for(until_disconnected(channel), WAIT_SECONDS)
    await channel.close()


async def test_a_certificate_that_expires_on_an_open_connection_counts_no_longer(certificates: Certificates) -> None:
    files = certificates.issue("client", valid=timedelta(seconds=-1))
    with pytest.raises(AccessError, match=r"the caller's certificate \(for .*client.*\) expired on"):
        peer_of({"x509_pem_cert": [files.certificate.read_bytes()]})
    assert peer_of({}) is None


async def test_a_failed_connection_is_explained(certificates: Certificates, tmp_path: Path) -> None:
    other = Certificates.of(tmp_path / "other")
    strange = other.issue("client")
    trusting = TlsFiles(certificate=strange.certificate, key=strange.key, authorities=certificates.folder / "ca.crt")
    own = certificates.issue("client")
    async with serving(certificates.issue("planner", hosts=("127.0.0.1",))) as (_, address):

        async def why(files: TlsFiles, where: str = address) -> str:
            return await asyncio.to_thread(why_refused, where, files)

        assert await why(own) == ""
        assert "for urn:partition-planner:planner, 127.0.0.1, valid until" in await why(strange)
        assert "unable to get local issuer certificate" in await why(strange)
        assert "not valid for 'localhost'" in await why(own, address.replace("127.0.0.1", "localhost"))
        assert f"it has seen the certificate {strange.certificate}" in await why(trusting)
        expired = certificates.issue("client", valid=timedelta(seconds=-1), name="late")
        assert "does not accept it" in await why(expired)
        assert await why(own, "127.0.0.1:1") == ""
    server = grpc.aio.server()
    plain = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    await server.start()
    assert "it speaks plain text, not TLS" in await asyncio.to_thread(why_refused, plain, own)
    await server.stop(0)
