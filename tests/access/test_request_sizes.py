"""What is too large, or no message, reaches neither the parser nor the call."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
from google.protobuf.wrappers_pb2 import StringValue

from access.request_sizes import RequestSizesInterceptor

FITS = StringValue(value="12345")
LIMIT_BYTES = len(FITS.SerializeToString())
TOO_LARGE = StringValue(value="123456").SerializeToString()
NO_MESSAGE = b"\xff"
Details = grpc.HandlerCallDetails


class RefusedError(Exception):
    pass


class Call(Details):
    method = "/a.Service/Say"
    invocation_metadata = ()


async def taken_by(handler: Any, *, limit_bytes: float | None = LIMIT_BYTES) -> Any:
    """The handler as a server with the interceptor has it."""

    async def find(_: Details) -> Any:
        return handler

    return await RequestSizesInterceptor(lambda method: limit_bytes, RefusedError).intercept_service(find, Call())


async def say(request: StringValue, _: Any) -> str:
    return request.value


async def say_letters(request: StringValue, _: Any) -> AsyncIterator[str]:
    for letter in request.value:
        yield letter


async def say_all(requests: AsyncIterator[StringValue], _: Any) -> list[str]:
    return [request.value async for request in requests]


async def say_each(requests: AsyncIterator[StringValue], _: Any) -> AsyncIterator[str]:
    async for request in requests:
        yield request.value


async def stream(*requests: Any) -> AsyncIterator[Any]:
    for request in requests:
        yield request


async def test_what_fits_comes_parsed() -> None:
    parse = StringValue.FromString
    one = await taken_by(grpc.unary_unary_rpc_method_handler(say, parse))
    letters = await taken_by(grpc.unary_stream_rpc_method_handler(say_letters, parse))
    everything = await taken_by(grpc.stream_unary_rpc_method_handler(say_all, parse))
    each = await taken_by(grpc.stream_stream_rpc_method_handler(say_each, parse))
    request = one.request_deserializer(FITS.SerializeToString())
    assert request == FITS
    assert await one.unary_unary(request, None) == "12345"
    assert [letter async for letter in letters.unary_stream(request, None)] == list("12345")
    assert await everything.stream_unary(stream(request, request), None) == ["12345", "12345"]
    assert [text async for text in each.stream_stream(stream(request), None)] == ["12345"]


@pytest.mark.parametrize(
    ("content", "message"),
    [(TOO_LARGE, "Say: a message of 8 bytes came, and at most 7 are taken"), (NO_MESSAGE, "Say: a message cannot be")],
)
async def test_what_does_not_fit_is_refused_by_the_call(content: bytes, message: str) -> None:
    parse = StringValue.FromString
    one = await taken_by(grpc.unary_unary_rpc_method_handler(say, parse))
    each = await taken_by(grpc.stream_stream_rpc_method_handler(say_each, parse))
    request = one.request_deserializer(content)
    with pytest.raises(RefusedError, match=message):
        await one.unary_unary(request, None)
    answers = each.stream_stream(stream(FITS, request), None)
    assert await anext(answers) == "12345"
    with pytest.raises(RefusedError, match=message):
        await anext(answers)


async def test_nothing_is_parsed_of_what_is_too_large() -> None:
    parsed: list[bytes] = []
    handler = await taken_by(grpc.unary_unary_rpc_method_handler(say, parsed.append))
    handler.request_deserializer(TOO_LARGE)
    assert parsed == []


async def test_a_service_that_counts_itself_gets_the_bytes_and_an_unknown_method_nothing() -> None:
    handler = grpc.unary_unary_rpc_method_handler(say, StringValue.FromString)
    assert (await taken_by(handler, limit_bytes=None)).request_deserializer is None
    assert await taken_by(None) is None
