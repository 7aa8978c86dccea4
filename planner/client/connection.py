"""A channel to one server: deadlines on every call, gRPC errors turned back into the planner's own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

import grpc

import access.channels
from access.errors import AccessError
from access.files import TlsFiles, WatchedCredentials
from planner.client.failover import Restarts, stub_of_any
from planner.client.lifetime import Lifetime
from planner.client.status import error_from_rpc
from planner.errors import InvalidArgument
from protos.v1 import access_pb2, access_pb2_grpc, planner_pb2, planner_pb2_grpc

_Response = TypeVar("_Response")

# Blobs travel in 1 MiB chunks; the largest single message is a serialized plan.
PLANNER_MESSAGE_BYTES = 64 << 20
CONNECT_SECONDS = 20.0


def watch(tls: TlsFiles | None) -> WatchedCredentials | None:
    """Raises InvalidArgument where the files are not sound."""
    try:
        return WatchedCredentials(tls) if tls else None
    except AccessError as error:
        raise InvalidArgument(error.message) from None


def open_channel(
    address: str,
    *,
    message_bytes: int,
    credentials: WatchedCredentials | None = None,
    token: access.channels.TokenSource | None = None,
) -> grpc.Channel:
    """Connects on the first call. A lost connection is tried again after 0.1 s at first, 2 s at most.

    One that comes up slowly, since the server is busy, is given CONNECT_SECONDS.
    """
    channel: grpc.Channel = access.channels.open_channel(
        address,
        credentials,
        (
            ("grpc.max_send_message_length", message_bytes),
            ("grpc.max_receive_message_length", message_bytes),
            ("grpc.initial_reconnect_backoff_ms", 100),
            # In spite of its name this is how long an attempt may take; gRPC ends it no sooner than the next is due.
            ("grpc.min_reconnect_backoff_ms", int(CONNECT_SECONDS * 1000)),
            ("grpc.max_reconnect_backoff_ms", 2000),
            *access.channels.KEEPALIVE,
        ),
        token,
    )
    return channel


def _read_token(path: Path) -> str:
    try:
        token = path.read_text().strip()
    except (OSError, ValueError) as error:
        raise InvalidArgument(f"cannot read the token file {path}: {error}") from None
    if not token.isascii() or len(token.split()) != 1:
        raise InvalidArgument(
            f"the token file {path} holds no token: write what `planner-cli tokens create` gave, alone"
        )
    return token


class Connection:
    """To a planner-server, or to whichever of several answers: "a:1,b:2". Threads may share it."""

    def __init__(
        self,
        address: str,
        *,
        timeout_seconds: float,
        tls: TlsFiles | None = None,
        token_file: Path | None = None,
        restarts: Restarts | None = None,
    ) -> None:
        if token_file is not None and tls is None:
            raise InvalidArgument(f"the token in {token_file} travels over TLS alone: give TLS files too")
        self.address = address
        self.timeout_seconds = timeout_seconds
        self.credentials = watch(tls)
        self._lifetime = Lifetime(f"this client of {address}")
        self._channels = [
            open_channel(
                one,
                message_bytes=PLANNER_MESSAGE_BYTES,
                credentials=self.credentials,
                token=None if token_file is None else lambda: _read_token(token_file),
            )
            for one in address.split(",")
        ]
        restarts = restarts or Restarts(address.split(","))
        self.restart_seconds = restarts.seconds
        self.access_stub: access_pb2_grpc.AccessServiceStub = stub_of_any(
            self._channels,
            access_pb2_grpc.AccessServiceStub,
            access_pb2.DESCRIPTOR.services_by_name["AccessService"],
            restarts,
        )
        self.stub: planner_pb2_grpc.PlannerServiceStub = stub_of_any(
            self._channels,
            planner_pb2_grpc.PlannerServiceStub,
            planner_pb2.DESCRIPTOR.services_by_name["PlannerService"],
            restarts,
        )

    def call(
        self, method: Callable[..., _Response], request: object, *, timeout_seconds: float | None = None
    ) -> _Response:
        """One answer, within `timeout_seconds`; if None, within the connection's own from each server that is asked.

        Raises Conflict once it is closed, and in a process that was forked from its own.
        """
        self._lifetime.check()
        is_total = timeout_seconds is not None
        try:
            return method(request, timeout=timeout_seconds or self.timeout_seconds, is_total=is_total)
        except grpc.RpcError as error:
            raise self._translate(error) from None

    def stream(
        self, method: Callable[..., Any], request: object, *, timeout_seconds: float | None = None
    ) -> Iterator[Any]:
        """Each answer as it comes; leaving the iterator early cancels the call. Raises Conflict as `call` does."""
        self._lifetime.check()
        call = method(request, timeout=timeout_seconds)
        try:
            yield from call
        except grpc.RpcError as error:
            raise self._translate(error) from None
        finally:
            call.cancel()

    def pages(
        self, method: Callable[..., Any], request: Any, *, owner: str = "", created_since: datetime | None = None
    ) -> Iterator[Any]:
        """Each page of a list, as it is asked for; a moment without a time zone is a local one."""
        if owner:
            request.owner = owner
        if created_since is not None:
            request.created_since.FromDatetime(created_since.astimezone(UTC))
        while True:
            page = self.call(method, request)
            yield page
            if not page.next_page_token:
                return
            request.page_token = page.next_page_token

    def close(self) -> None:
        """Calls that are under way end with Cancelled. Idempotent."""
        if self._lifetime.end():
            for channel in self._channels:
                channel.close()

    def _translate(self, error: grpc.RpcError) -> Exception:
        unreachable = (
            f"no planner-server answers at {self.address}; start one with `planner-server` "
            f"(or `planner-cli up` to try things out), or name the right address"
        )
        if self.credentials is not None and error.code() is grpc.StatusCode.UNAVAILABLE:
            # Takes long to import, and is seldom needed.
            from access.diagnosis import why_refused

            reasons = (why_refused(one, self.credentials.files) for one in self.address.split(","))
            unreachable = next(filter(None, reasons), unreachable)
        return error_from_rpc(error, unreachable=unreachable)
