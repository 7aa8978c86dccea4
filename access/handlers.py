"""What interceptors do to a gRPC method's handler, whichever of the four kinds it is of."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Wrap = Callable[[Callable[..., Any]], Callable[..., Any]]


def wrapped(handler: Any, one_answer: Wrap, many_answers: Wrap) -> Any:
    """A grpc.RpcMethodHandler whose function is wrapped: by `many_answers` where it streams them."""
    for kind, wrap in (
        ("unary_unary", one_answer),
        ("stream_unary", one_answer),
        ("unary_stream", many_answers),
        ("stream_stream", many_answers),
    ):
        if (call := getattr(handler, kind)) is not None:
            return handler._replace(**{kind: wrap(call)})
    raise AssertionError("a handler without a function")
