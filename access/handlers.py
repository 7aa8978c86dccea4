"""What interceptors do to a gRPC method's handler, whichever of the four kinds it is of."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc

Wrap = Callable[[Callable[..., Any]], Callable[..., Any]]
KINDS = ("unary_unary", "stream_unary", "unary_stream", "stream_stream")


class HandlerInterceptor(grpc.aio.ServerInterceptor):
    """Puts `around` between a method's function and those who call it."""

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        handler = await continuation(handler_call_details)
        return None if handler is None else self.around(handler, handler_call_details.method)

    def around(self, handler: Any, method: str) -> Any:
        """A handler to take the place of this one of `method`, its full name; or the same."""
        raise NotImplementedError


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
