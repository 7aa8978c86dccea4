"""Serializes answers with many entries beside the event loop; what a service has serialized itself passes as it is."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

from google.protobuf.message import Message

from access.handlers import HandlerInterceptor, wrapped
from access.pieces import is_large, serialize_in_pieces


class LargeAnswersInterceptor(HandlerInterceptor):
    """Outside of all that look at answers."""

    def around(self, handler: Any, method: str) -> Any:
        serialize = handler.response_serializer

        def one_answer(call: Callable[..., Any]) -> Callable[..., Any]:
            async def answer(request: Any, context: Any) -> Any:
                return await _prepared(await call(request, context))

            return answer

        def many_answers(call: Callable[..., Any]) -> Callable[..., Any]:
            async def answers(request: Any, context: Any) -> AsyncIterator[Any]:
                async for item in call(request, context):
                    yield await _prepared(item)

            return answers

        def to_bytes(answer: Any) -> Any:
            return answer if isinstance(answer, bytes) else serialize(answer)

        return wrapped(handler, one_answer, many_answers)._replace(response_serializer=to_bytes)


async def _prepared(answer: Any) -> Any:
    if isinstance(answer, Message) and is_large(answer):
        return await asyncio.to_thread(serialize_in_pieces, answer)
    return answer
