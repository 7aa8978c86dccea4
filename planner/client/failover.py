"""Calls to a planner-server, or to whichever of several answers.

All of them serve one database, so a call that one did not answer can be asked of the next. What creates carries a
request_id, and happens once.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar, cast

import grpc
from google.protobuf.descriptor import ServiceDescriptor

from planner.client.interruption import interruptible, one_answer, pause

_Stub = TypeVar("_Stub")

# Several servers are asked in turn so often, for one may be starting again, or about to lead once a dead one's claim
# has ended; pauses double.
ROUNDS = 6
FIRST_PAUSE_SECONDS = 0.25
# Whether the first server that was asked deleted it cannot be known, and the next would say that it is not there.
_ONCE = "Delete"


def stub_of_any(
    channels: Sequence[grpc.Channel], stub: Callable[[grpc.Channel], _Stub], service: ServiceDescriptor
) -> _Stub:
    """A stub whose calls go to the server that answered last, and from one that is UNAVAILABLE to the next."""
    return cast(_Stub, _AnyStub([stub(channel) for channel in channels], service))


class _AnyStub:
    def __init__(self, stubs: Sequence[object], service: ServiceDescriptor) -> None:
        self._stubs = stubs
        self._methods = service.methods_by_name
        self._preferred = 0

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method = self._methods[name]
        if method.server_streaming:
            return lambda request, timeout=None: _Responses(self._stream(name, request, timeout))
        is_resent = not method.client_streaming and not name.startswith(_ONCE)
        return lambda request, timeout=None: self._call(name, request, timeout, is_resent)

    def _call(self, name: str, request: Any, timeout: float | None, is_resent: bool) -> Any:
        ends_at = None if timeout is None else time.monotonic() + timeout
        for index, is_last in self._turns():
            remaining = None if ends_at is None else max(0.0, ends_at - time.monotonic())
            try:
                return one_answer(getattr(self._stubs[index], name), request, timeout=remaining)
            except grpc.RpcError as error:
                if not self._passes_on(index, error) or not is_resent or is_last:
                    raise
        raise AssertionError("unreachable")

    def _stream(self, name: str, request: Any, timeout: float | None) -> Iterator[Any]:
        """From another server only where nothing came yet: who reads knows how to go on from what came."""
        for index, is_last in self._turns():
            call = getattr(self._stubs[index], name)(request, timeout=timeout)
            num_read = 0
            try:
                with interruptible(call.cancel):
                    for response in call:
                        num_read += 1
                        yield response
                return
            except grpc.RpcError as error:
                if not self._passes_on(index, error) or num_read or is_last:
                    raise
            finally:
                call.cancel()

    def _turns(self) -> Iterator[tuple[int, bool]]:
        """Which server to ask now, and whether it is the last time."""
        pause_seconds = FIRST_PAUSE_SECONDS
        num_rounds = ROUNDS if len(self._stubs) > 1 else 1
        for round_index in range(num_rounds):
            if round_index:
                pause(pause_seconds)
                pause_seconds *= 2
            for turn in range(len(self._stubs)):
                yield self._preferred, round_index == num_rounds - 1 and turn == len(self._stubs) - 1

    def _passes_on(self, index: int, error: grpc.RpcError) -> bool:
        """Whether another server may answer; from now on it is asked first."""
        if not isinstance(error, grpc.Call):
            return False
        code = error.code()
        if code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED) and self._preferred == index:
            self._preferred = (index + 1) % len(self._stubs)
        return code is grpc.StatusCode.UNAVAILABLE


class _Responses:
    def __init__(self, responses: Iterator[Any]) -> None:
        self._responses = responses

    def __iter__(self) -> Iterator[Any]:
        return self._responses

    def cancel(self) -> None:
        """Ends the call where its reader has stopped."""
        self._responses.close()  # type: ignore[attr-defined]
