"""What interceptors do to a gRPC method's handler, whichever of the four kinds it is of."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

Wrap = Callable[[Callable[..., Any]], Callable[..., Any]]
KINDS = ("unary_unary", "stream_unary", "unary_stream", "stream_stream")


def wrapped(handler: Any, one_answer: Wrap, many_answers: Wrap) -> Any:
    """A grpc.RpcMethodHandler whose function is wrapped: by `many_answers` where it is an asynchronous generator."""
    for kind in KINDS:
        if (call := getattr(handler, kind)) is not None:
            wrap = many_answers if inspect.isasyncgenfunction(call) else one_answer
            return handler._replace(**{kind: wrap(call)})
    raise AssertionError("a handler without a function")


def prepared(handler: Any, prepare: Callable[[Any, Any], Awaitable[None]]) -> Any:
    """A handler that first awaits `prepare(request, context)`; what that raises ends the call."""

    def one_answer(call: Callable[..., Any]) -> Callable[..., Any]:
        async def answer(request: Any, context: Any) -> Any:
            await prepare(request, context)
            return await call(request, context)

        return answer

    def many_answers(call: Callable[..., Any]) -> Callable[..., Any]:
        async def answers(request: Any, context: Any) -> AsyncIterator[Any]:
            await prepare(request, context)
            async for item in call(request, context):
                yield item

        return answers

    return wrapped(handler, one_answer, many_answers)
