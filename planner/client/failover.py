"""Calls to a planner-server, or to whichever of several answers, through their restarts.

All of them serve one database, so a call that one did not answer can be asked of the next, or of the same one once it
has started again. What creates carries a request_id, and happens once.
"""

from __future__ import annotations

import logging
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from typing import Any, TypeVar, cast

import grpc
from google.protobuf.descriptor import ServiceDescriptor

from access.addresses import parse_endpoint
from access.unanswered import gives_reasons, is_silent, is_unanswered
from planner.client.answers import answers_of
from planner.client.interruption import one_answer, pause
from planner.client.status import reason_of
from planner.errors import AwayForNow, NotLeading

_Stub = TypeVar("_Stub")

# Between two rounds through the servers; pauses double up to the most.
FIRST_PAUSE_SECONDS = 0.25
MOST_PAUSE_SECONDS = 2.0
# A server that starts takes a few seconds, and leads once a dead one's claim has ended.
DEFAULT_RESTART_SECONDS = 20.0
PROBE_SECONDS = 1.0
# Whether the first server that was asked did it cannot be known: the next would say that it is not there any more, or
# make another one.
_ONCE = ("Delete", "CreateToken")
# Refusals that are over as soon as a restart is, by their reasons, and who it is that does not answer. A planner that
# was killed is back before it has lost the lead that it had.
_SOON_OVER = {
    NotLeading.reason: "no planner-server that leads",
    AwayForNow.reason: "no planner-server that has its database",
}

log = logging.getLogger(__name__)


class Restarts:
    """For how long servers that do not answer are asked again, and who is told.

    A server that has never answered may be the wrong one, and is given up at once, unless `awaits_first`: then one at
    whose address nobody listens is waited for too. Of several one may answer, so that all are asked again in any case.
    `tell` is called once for each time that nobody answers.
    """

    def __init__(
        self,
        addresses: Sequence[str],
        seconds: float = DEFAULT_RESTART_SECONDS,
        *,
        awaits_first: bool = False,
        tell: Callable[[str], None] = log.warning,
    ) -> None:
        self._addresses = addresses
        self._seconds = seconds
        self._awaits_first = awaits_first
        self._tell = tell
        self._has_answered = False
        self._is_told = False

    @property
    def seconds(self) -> float:
        return self._seconds

    def is_awaited(self, error: grpc.RpcError) -> bool:
        """Whether to ask again after that answer of the only server, or of the last of several."""
        if len(self._addresses) > 1:
            return True
        if gives_reasons(error):
            return self._has_answered and reason_of(error) in _SOON_OVER
        # Somebody who listens now may have begun to since the call.
        return self._has_answered or self._is_told or (self._awaits_first and not _is_listening(self._addresses[0]))

    def begin(self, error: grpc.RpcError) -> None:
        if not self._is_told:
            self._is_told = True
            who = _SOON_OVER.get(reason_of(error), "no planner-server")
            self._tell(
                f"{who} answers at {','.join(self._addresses)}; asking again for {self._seconds:g} s, in "
                "case it is being restarted"
            )

    def answered(self) -> None:
        self._has_answered, self._is_told = True, False


def stub_of_any(
    channels: Sequence[grpc.Channel],
    stub: Callable[[grpc.Channel], _Stub],
    service: ServiceDescriptor,
    restarts: Restarts,
) -> _Stub:
    """A stub whose calls go to the server that answered last, and from one that is UNAVAILABLE to the next."""
    return cast(_Stub, _AnyStub([stub(channel) for channel in channels], service, restarts))


class _AnyStub:
    def __init__(self, stubs: Sequence[object], service: ServiceDescriptor, restarts: Restarts) -> None:
        self._stubs = stubs
        self._methods = service.methods_by_name
        self._restarts = restarts
        self._preferred = 0

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method = self._methods[name]
        if method.server_streaming:
            return lambda request, timeout=None: _Responses(self._stream(name, request, timeout))
        is_resent = not method.client_streaming and not name.startswith(_ONCE)
        return lambda request, timeout=None, is_total=True: self._call(name, request, timeout, is_total, is_resent)

    def _call(self, name: str, request: Any, timeout: float | None, is_total: bool, is_resent: bool) -> Any:
        """`timeout` is for all tries together where it `is_total`, else for each."""
        turns = _Turns(len(self._stubs), self._restarts, timeout, is_total)
        while True:
            index = self._preferred
            try:
                answer = one_answer(getattr(self._stubs[index], name), request, timeout=turns.remaining())
            except grpc.RpcError as error:
                if not self._passes_on(index, error) or not is_resent or not turns.go_on(error):
                    raise
            else:
                self._restarts.answered()
                return answer

    def _stream(self, name: str, request: Any, timeout: float | None) -> Iterator[Any]:
        """From another server only where nothing came yet: who reads knows how to go on from what came."""
        turns = _Turns(len(self._stubs), self._restarts, timeout, is_total=True)
        while True:
            index = self._preferred
            call = getattr(self._stubs[index], name)(request, timeout=turns.remaining())
            num_read = 0
            try:
                with closing(answers_of(call)) as answers:
                    for response in answers:
                        num_read += 1
                        self._restarts.answered()
                        yield response
                return
            except grpc.RpcError as error:
                if not self._passes_on(index, error) or num_read or not turns.go_on(error):
                    raise

    def _passes_on(self, index: int, error: grpc.RpcError) -> bool:
        """Whether another server may answer; from now on it is asked first."""
        if not isinstance(error, grpc.Call):
            return False
        if is_silent(error) and self._preferred == index:
            self._preferred = (index + 1) % len(self._stubs)
        if is_unanswered(error):
            return True
        if gives_reasons(error):
            self._restarts.answered()
        return False


class _Turns:
    """Of one call: when to ask the next server, and when to give up."""

    def __init__(self, num_servers: int, restarts: Restarts, timeout: float | None, is_total: bool) -> None:
        self._num_servers = num_servers
        self._restarts = restarts
        self._each_seconds = None if is_total else timeout
        self._ends_at = time.monotonic() + timeout if is_total and timeout is not None else None
        self._num_failed = 0
        self._gives_up_at = 0.0
        self._pause_seconds = FIRST_PAUSE_SECONDS

    def remaining(self) -> float | None:
        """For the next try; None sets no limit."""
        return self._each_seconds if self._ends_at is None else max(0.0, self._ends_at - time.monotonic())

    def go_on(self, error: grpc.RpcError) -> bool:
        """Whether to ask again, after a pause where all have been asked."""
        self._num_failed += 1
        if self._num_failed % self._num_servers:
            return True
        now = time.monotonic()
        if self._num_failed == self._num_servers:
            self._gives_up_at = now + self._restarts.seconds
            if self._ends_at is not None:
                self._gives_up_at = min(self._gives_up_at, self._ends_at)
        if now + self._pause_seconds >= self._gives_up_at or not self._restarts.is_awaited(error):
            return False
        self._restarts.begin(error)
        pause(self._pause_seconds)
        self._pause_seconds = min(2 * self._pause_seconds, MOST_PAUSE_SECONDS)
        return True


class _Responses:
    def __init__(self, responses: Iterator[Any]) -> None:
        self._responses = responses

    def __iter__(self) -> Iterator[Any]:
        return self._responses

    def cancel(self) -> None:
        """Ends the call where its reader has stopped."""
        self._responses.close()  # type: ignore[attr-defined]


def _is_listening(address: str) -> bool:
    try:
        endpoint = parse_endpoint(address)
        socket.create_connection((endpoint.host, endpoint.port), timeout=PROBE_SECONDS).close()
    except (OSError, ValueError):
        return False
    return True
