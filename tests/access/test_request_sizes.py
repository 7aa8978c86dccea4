"""What is too large, or no message, reaches neither the parser nor the call."""

from __future__ import annotations

import math
import threading
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
from google.protobuf.message import Message
from google.protobuf.struct_pb2 import ListValue, Value
from google.protobuf.wrappers_pb2 import StringValue

from access import request_sizes
from access.large_answers import LargeAnswersInterceptor
from access.pieces import PIECE_BYTES
from access.request_sizes import RequestSizesInterceptor, message_of

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


LARGE = StringValue(value="1" * PIECE_BYTES)


async def test_a_large_message_is_parsed_beside_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[bool] = []
    parse_in_pieces = request_sizes.parse_in_pieces

    def parse(message: Message, content: bytes) -> None:
        threads.append(threading.current_thread() is threading.main_thread())
        parse_in_pieces(message, content)

    monkeypatch.setattr(request_sizes, "parse_in_pieces", parse)
    one = await taken_by(grpc.unary_unary_rpc_method_handler(say, StringValue.FromString), limit_bytes=math.inf)
    each = await taken_by(grpc.stream_stream_rpc_method_handler(say_each, StringValue.FromString), limit_bytes=math.inf)
    content = LARGE.SerializeToString()
    request = one.request_deserializer(content)
    assert not message_of(request).value
    assert await one.unary_unary(request, None) == LARGE.value
    assert message_of(request) == LARGE
    request = one.request_deserializer(content)
    assert [text async for text in each.stream_stream(stream(FITS, request), None)] == ["12345", LARGE.value]
    assert threads == [False, False]
    with pytest.raises(RefusedError, match="Say: a message cannot be parsed"):
        await one.unary_unary(one.request_deserializer(content[:-1]), None)


async def test_large_answers_are_serialized_beside_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    many = ListValue(values=[Value(string_value=str(index)) for index in range(2000)])
    few = ListValue(values=many.values[:10])

    async def answer(request: ListValue, _: Any) -> ListValue:
        return request

    async def answers(request: ListValue, _: Any) -> AsyncIterator[ListValue | bytes]:
        yield request
        yield b"as it is"

    async def find(handler: Any) -> Any:
        async def found(_: Details) -> Any:
            return handler

        return await LargeAnswersInterceptor().intercept_service(found, Call())

    to_bytes = ListValue.SerializeToString
    one = await find(grpc.unary_unary_rpc_method_handler(answer, ListValue.FromString, to_bytes))
    each = await find(grpc.unary_stream_rpc_method_handler(answers, ListValue.FromString, to_bytes))
    assert await one.unary_unary(few, None) is few
    reply = await one.unary_unary(many, None)
    assert isinstance(reply, bytes)
    assert ListValue.FromString(one.response_serializer(reply)) == many
    assert ListValue.FromString(one.response_serializer(few)) == few
    assert [item async for item in each.unary_stream(few, None)] == [few, b"as it is"]
    assert each.response_serializer(b"as it is") == b"as it is"
