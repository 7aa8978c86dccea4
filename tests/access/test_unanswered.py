"""Calls that a real server refuses, that their own side ends, and that nobody answers."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import grpc
import pytest

from access.unanswered import is_unanswered

pytestmark = pytest.mark.services
Handler = Callable[[bytes, grpc.ServicerContext], bytes]
WAIT_SECONDS = 60.0


@contextmanager
def channel_to(handler: Handler) -> Iterator[grpc.Channel]:
    server = grpc.server(ThreadPoolExecutor(1))
    methods = {"M": grpc.unary_unary_rpc_method_handler(handler)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("S", methods),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        yield channel
    server.stop(None).wait()


def refusing(code: grpc.StatusCode, *, has_reasons: bool = False) -> Handler:
    def handler(_: bytes, context: grpc.ServicerContext) -> bytes:
        if has_reasons:
            context.set_trailing_metadata((("grpc-status-details-bin", b""),))
        context.abort(code, code.name)

    return handler


@pytest.mark.parametrize(
    ("handler", "expected"),
    [
        (refusing(grpc.StatusCode.UNAVAILABLE), True),
        (refusing(grpc.StatusCode.CANCELLED), True),
        (refusing(grpc.StatusCode.CANCELLED, has_reasons=True), False),
        (refusing(grpc.StatusCode.NOT_FOUND), False),
    ],
)
def test_what_a_server_says(handler: Handler, expected: bool) -> None:
    with channel_to(handler) as channel, pytest.raises(grpc.RpcError) as caught:
        channel.unary_unary("/S/M")(b"", timeout=WAIT_SECONDS)
    assert is_unanswered(caught.value) is expected


@pytest.mark.parametrize("closes", [False, True])
def test_what_this_side_ends_was_not_left_unanswered(closes: bool) -> None:
    is_asked, is_over = threading.Event(), threading.Event()

    def handler(_: bytes, __: grpc.ServicerContext) -> bytes:
        is_asked.set()
        is_over.wait(WAIT_SECONDS)
        return b""

    with channel_to(handler) as channel:
        call = channel.unary_unary("/S/M").future(b"", timeout=WAIT_SECONDS)
        assert is_asked.wait(WAIT_SECONDS)
        if closes:
            channel.close()
        else:
            call.cancel()
        error = call.exception() if closes else call
        assert call.code() is grpc.StatusCode.CANCELLED
        assert not is_unanswered(error)
        is_over.set()


@pytest.mark.parametrize(("details", "expected"), [("Locally cancelled by application!", False), ("CANCELLED", True)])
def test_calls_of_asyncio(details: str, expected: bool) -> None:
    nothing = grpc.aio.Metadata()
    assert is_unanswered(grpc.aio.AioRpcError(grpc.StatusCode.CANCELLED, nothing, nothing, details)) is expected
