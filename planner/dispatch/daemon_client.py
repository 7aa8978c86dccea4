"""Calls to one stage-daemon; what goes wrong comes back as DaemonCallFailed with a Failure that names the device."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable
from dataclasses import dataclass
from typing import TypeVar

import grpc
from google.rpc import error_details_pb2
from grpc_status import rpc_status

from access.channels import open_aio_channel, until_disconnected
from access.diagnosis import why_refused
from access.files import WatchedCredentials
from access.tickets import deployment_secret
from access.unanswered import is_unanswered
from planner.store.deployment_records import Failure
from protos.v1 import stage_daemon_pb2, stage_daemon_pb2_grpc

MAX_MESSAGE_BYTES = 1 << 30
CHANNEL_OPTIONS = (
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.max_reconnect_backoff_ms", 1000),
)
# Nothing listens where the daemon was.
UNREACHABLE = "DAEMON_UNREACHABLE"
Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True, kw_only=True)
class CallDeadlines:
    """`load_idle_seconds` is the longest silence while stages load: a whole load may take any time."""

    load_idle_seconds: float = 300.0
    rendezvous_seconds: float = 30.0
    connect_seconds: float = 120.0
    status_seconds: float = 2.0
    release_seconds: float = 10.0
    drain_seconds: float = 30.0
    # A wait of a running stage for its neighbour that takes longer fails the deployment.
    edge_seconds: float = 60.0


class DaemonCallFailed(Exception):
    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure


class DaemonClient:
    """One channel to one device's daemon. Without a secret of the planner's, deployments have none."""

    def __init__(
        self,
        device_id: str,
        address: str,
        deadlines: CallDeadlines,
        credentials: WatchedCredentials | None = None,
        planner_secret: bytes = b"",
    ) -> None:
        self.device_id = device_id
        self.address = address
        self.deadlines = deadlines
        self._credentials = credentials
        self._planner_secret = planner_secret
        self._channel = open_aio_channel(address, credentials, CHANNEL_OPTIONS)
        self._stub: stage_daemon_pb2_grpc.StageDaemonServiceAsyncStub = stage_daemon_pb2_grpc.StageDaemonServiceStub(
            self._channel
        )
        self._disconnecting: asyncio.Task[None] | None = None

    async def load(
        self, request: stage_daemon_pb2.LoadStagesRequest
    ) -> AsyncIterator[stage_daemon_pb2.LoadStagesResponse]:
        """Progress; ends once all of the daemon's stages are loaded."""
        call = self._stub.LoadStages(self._with_secret(request))
        responses = aiter(call)
        try:
            while True:
                response = await self._checked(anext(responses, None), "loading", self.deadlines.load_idle_seconds)
                if response is None:
                    return
                yield response
        finally:
            call.cancel()

    async def profile(
        self, request: stage_daemon_pb2.ProfileRequest, timeout_seconds: float | None = None
    ) -> AsyncGenerator[stage_daemon_pb2.ProfileResponse, None]:
        """Times as they come; leaving the iterator ends the profile, and so does the timeout, on the daemon itself."""
        call = self._stub.Profile(request, timeout=timeout_seconds)
        responses = aiter(call)
        try:
            while True:
                response = await self._checked(anext(responses, None), "profiling", self.deadlines.load_idle_seconds)
                if response is None:
                    return
                yield response
        finally:
            call.cancel()

    async def open_rendezvous(self, deployment_id: str, generation: int) -> str:
        request = stage_daemon_pb2.OpenRendezvousRequest(deployment_id=deployment_id, generation=generation)
        seconds = self.deadlines.rendezvous_seconds
        call = self._stub.OpenRendezvous(request, timeout=seconds)
        return (await self._checked(call, "opening the rendezvous", seconds)).address

    async def connect(self, request: stage_daemon_pb2.ConnectStagesRequest) -> None:
        seconds = self.deadlines.connect_seconds
        await self._checked(self._stub.ConnectStages(request, timeout=seconds), "connecting", seconds)

    async def release(self, deployment_id: str, generation: int, *, drain: bool, keep_states: bool) -> None:
        """A later generation stays; with `keep_states` the daemon has the weights at hand for it."""
        drain_seconds = self.deadlines.drain_seconds if drain else 0.0
        seconds = drain_seconds + self.deadlines.release_seconds
        request = stage_daemon_pb2.ReleaseDeploymentRequest(
            deployment_id=deployment_id,
            drain=drain,
            drain_seconds=drain_seconds,
            generation=generation,
            keep_states=keep_states,
        )
        await self._checked(self._stub.ReleaseDeployment(request, timeout=seconds), "letting go", seconds)

    async def status(self) -> stage_daemon_pb2.GetDaemonStatusResponse:
        seconds = self.deadlines.status_seconds
        request = stage_daemon_pb2.GetDaemonStatusRequest()
        return await self._checked(self._stub.GetDaemonStatus(request, timeout=seconds), "asking its status", seconds)

    async def until_disconnected(self) -> None:
        """Connects, and returns once the connection could not be made or has broken.

        All who wait share one watch: gRPC frees one only once the connection changes, also where its waiter has left.
        """
        if self._disconnecting is None or self._disconnecting.done():
            self._disconnecting = asyncio.create_task(until_disconnected(self._channel))
        await asyncio.shield(self._disconnecting)

    async def close(self) -> None:
        if self._disconnecting is not None:
            self._disconnecting.cancel()
            await asyncio.wait({self._disconnecting})
        await self._channel.close(None)

    def _with_secret(self, request: stage_daemon_pb2.LoadStagesRequest) -> stage_daemon_pb2.LoadStagesRequest:
        if not self._planner_secret:
            return request
        with_secret = stage_daemon_pb2.LoadStagesRequest()
        with_secret.CopyFrom(request)
        with_secret.secret = deployment_secret(self._planner_secret, request.deployment_id)
        return with_secret

    async def _checked(self, call: Awaitable[Answer], doing: str, seconds: float) -> Answer:
        try:
            # Calls have deadlines of their own; a stream's next message has this one.
            async with asyncio.timeout(seconds + 1.0):
                return await call
        except grpc.aio.AioRpcError as error:
            raise DaemonCallFailed(await self._failure(error, doing, seconds)) from error
        except TimeoutError as error:
            message = f"{doing}: nothing was heard of the daemon of {self.device_id} for {seconds:g} s"
            raise DaemonCallFailed(
                Failure(reason="DEADLINE_EXCEEDED", message=message, device_id=self.device_id)
            ) from error

    async def _failure(self, error: grpc.aio.AioRpcError, doing: str, seconds: float) -> Failure:
        info = _error_info(error)
        if info is not None:
            metadata = dict(info.metadata)
            stage = metadata.get("stage", "")
            return Failure(
                reason=info.reason,
                message=error.details() or info.reason,
                stage=int(stage) if stage.isdecimal() else None,
                device_id=metadata.get("device_id", self.device_id),
                metadata=metadata,
            )
        code = error.code()
        if is_unanswered(error):
            why = await self._why_unreachable() or error.details()
            reason, what = UNREACHABLE, f"the daemon at {self.address} cannot be reached ({why})"
        elif code is grpc.StatusCode.DEADLINE_EXCEEDED:
            reason, what = "DEADLINE_EXCEEDED", f"no answer within {seconds:g} s"
        else:
            reason, what = "DAEMON_ERROR", f"{code.name}: {error.details()}"
        return Failure(reason=reason, message=f"{doing}: {what}", device_id=self.device_id)

    async def _why_unreachable(self) -> str:
        """Nothing where TLS is not the reason."""
        return await asyncio.to_thread(why_refused, self.address, self._credentials.files) if self._credentials else ""


def _error_info(error: grpc.aio.AioRpcError) -> error_details_pb2.ErrorInfo | None:
    status = rpc_status.from_call(error)  # type: ignore[arg-type]
    for detail in status.details if status is not None else ():
        info = error_details_pb2.ErrorInfo()
        if detail.Unpack(info):
            return info
    return None
