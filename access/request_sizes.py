"""Counts a request's bytes before it is parsed, and parses large ones beside the event loop.

Parsing takes several times as much memory, and holds up everybody else.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any

from google.protobuf.message import DecodeError, Message

from access.handlers import HandlerInterceptor, wrapped
from access.pieces import PIECE_BYTES, parse_in_pieces


@dataclass(frozen=True, slots=True)
class Unread:
    """Stands where the request would, until the call itself can refuse it."""

    message: str


@dataclass(frozen=True, slots=True)
class Unparsed:
    """A large message of that method: empty until the call has filled it from the content."""

    name: str
    message: Message
    content: bytes


def message_of(request: Any) -> Any:
    """What the call gets, for those outside of it."""
    return request.message if isinstance(request, Unparsed) else request


class RequestSizesInterceptor(HandlerInterceptor):
    """Inside the one that turns errors into statuses, and outside of all that look at requests.

    `limit_of` a method is the most bytes of one of its messages; None hands the service the bytes that came, unparsed.
    What `refusal` makes of a message is raised for those that are larger or cannot be parsed.
    """

    def __init__(self, limit_of: Callable[[str], float | None], refusal: Callable[[str], Exception]) -> None:
        self._limit_of = limit_of
        self._refusal = refusal

    def around(self, handler: Any, method: str) -> Any:
        limit_bytes = self._limit_of(method)
        if limit_bytes is None:
            return handler._replace(request_deserializer=None)
        parse = _reader(method.rpartition("/")[2], handler.request_deserializer, limit_bytes)

        async def admitted(request: Any) -> Any:
            return self._all_read(request) if handler.request_streaming else await self._read(request)

        def one_answer(call: Callable[..., Any]) -> Callable[..., Any]:
            async def answer(request: Any, context: Any) -> Any:
                return await call(await admitted(request), context)

            return answer

        def many_answers(call: Callable[..., Any]) -> Callable[..., Any]:
            async def answers(request: Any, context: Any) -> AsyncIterator[Any]:
                async for item in call(await admitted(request), context):
                    yield item

            return answers

        return wrapped(handler, one_answer, many_answers)._replace(request_deserializer=parse)

    async def _read(self, request: Any) -> Any:
        if isinstance(request, Unread):
            raise self._refusal(request.message)
        if not isinstance(request, Unparsed):
            return request
        try:
            await asyncio.to_thread(parse_in_pieces, request.message, request.content)
        except DecodeError as error:
            raise self._refusal(f"{request.name}: a message cannot be parsed: {error}") from None
        return request.message

    async def _all_read(self, requests: AsyncIterator[Any]) -> AsyncIterator[Any]:
        async for request in requests:
            yield await self._read(request)


def _reader(name: str, parse: Callable[[bytes], Any], limit_bytes: float) -> Callable[[bytes], Any]:
    def read(content: bytes) -> Any:
        if len(content) > limit_bytes:
            return Unread(f"{name}: a message of {len(content):,} bytes came, and at most {limit_bytes:,.0f} are taken")
        # Of generated code's methods `FromString`.
        kind = getattr(parse, "__self__", None)
        if len(content) > PIECE_BYTES and isinstance(kind, type) and issubclass(kind, Message):
            return Unparsed(name, kind(), content)
        try:
            return parse(content)
        except DecodeError:
            return Unread(f"{name}: a message cannot be parsed")

    return read
