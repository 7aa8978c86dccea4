"""Which failures of a gRPC call say that nobody answered it, so that another server, or the same one later, may."""

from __future__ import annotations

from typing import Any

import grpc

# How grpc's details begin where the caller's own side ended the call or its channel.
_LOCALLY = ("Locally cancelled", "Channel closed", "Channel is closed")
# The key under which a server gives its reasons.
_REASONS = "grpc-status-details-bin"


def is_unanswered(error: grpc.RpcError) -> bool:
    """UNAVAILABLE, or cancelled without a reason and by nobody on this side.

    A server that ends drops the calls that it has taken in but not begun, and grpc tells their callers CANCELLED.
    """
    code = error.code()
    if code is not grpc.StatusCode.CANCELLED:
        return code is grpc.StatusCode.UNAVAILABLE
    return not gives_reasons(error) and not (error.details() or "").startswith(_LOCALLY)


def is_silent(error: grpc.RpcError) -> bool:
    """Nobody answered, or not in time: whoever is asked next may be quicker."""
    return is_unanswered(error) or error.code() is grpc.StatusCode.DEADLINE_EXCEEDED


def gives_reasons(error: grpc.RpcError) -> bool:
    """Our services do; a connection that broke, and a server that is ending, have none."""
    metadata: Any = error.trailing_metadata() or ()
    return _REASONS in dict(metadata)
