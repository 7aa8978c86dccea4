"""Keeps the planner told: registers, then heartbeats; a planner that is gone is waited for, and the daemon goes on.

Where several planners share a database the daemon tells one of them, and the next where that one does not answer.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import Iterable

import grpc
import structlog
from google.rpc import error_details_pb2
from grpc_status import rpc_status

from access.channels import open_aio_channel
from access.diagnosis import why_refused
from access.files import WatchedCredentials
from access.unanswered import is_silent
from protos.v1 import planner_pb2, planner_pb2_grpc
from stage_daemon.control.supervisor import Supervisor
from stage_daemon.errors import Conflict

BEATS_PER_LEASE = 3
FIRST_BACK_OFF_SECONDS = 0.1
MOST_BACK_OFF_SECONDS = 3.0
CALL_SECONDS = 10.0
LEAST_CALL_SECONDS = 1.0
# Asking again cannot help: the planner refuses what this daemon says of itself.
FATAL_REASONS = frozenset({"INVALID_ARGUMENT", "INVALID_INVENTORY"})
# Another daemon holds the lease of this one's device.
TAKEN = "DEVICE_TAKEN"
# A daemon that died keeps its device for one lease; one that keeps it for longer is alive.
LEASES_UNTIL_TAKEN = 2.0
DEFAULT_LEASE_SECONDS = 10.0

log = structlog.get_logger(__name__)


class Registration:
    """`registered` is set for good once the planner has taken this daemon."""

    def __init__(
        self,
        planner_addresses: str,
        request: planner_pb2.RegisterDaemonRequest,
        supervisor: Supervisor,
        credentials: WatchedCredentials | None = None,
    ) -> None:
        self.registered = asyncio.Event()
        self._connected = asyncio.Event()
        self._request = request
        self._supervisor = supervisor
        self._reported: dict[str, int] = {}
        self._releases: set[asyncio.Task[None]] = set()
        self._most_back_off_seconds = MOST_BACK_OFF_SECONDS
        self._taken_since: float | None = None
        self._lease_seconds = DEFAULT_LEASE_SECONDS
        self._credentials = credentials
        self._addresses = planner_addresses.split(",")
        options = (("grpc.max_reconnect_backoff_ms", 300), ("grpc.initial_reconnect_backoff_ms", 100))
        self._channels = [open_aio_channel(address, credentials, options) for address in self._addresses]
        self._current = 0
        self._stub = self._stub_of_current()

    async def run(self) -> None:
        """Until cancelled. Raises Conflict where the planner will never take this daemon.

        One whose device another daemon has waits for it; it gives up only where it holds no work.
        """
        failures = 0
        while True:
            try:
                lease_seconds = await self._register()
                failures = 0
                while True:
                    # A planner that comes back gives a lease of grace: tries must not lie further apart.
                    self._most_back_off_seconds = min(MOST_BACK_OFF_SECONDS, lease_seconds / BEATS_PER_LEASE)
                    await self._pause(lease_seconds / BEATS_PER_LEASE)
                    lease_seconds = await self._beat(lease_seconds)
            except grpc.aio.AioRpcError as error:
                self._connected.clear()
                await self._judge(error)
                if error.code() is not grpc.StatusCode.NOT_FOUND:
                    if failures == 0:
                        message = await self._why_refused() or error.details()
                        log.warning("planner is not answering", code=error.code().name, message=message)
                    # Another planner may answer at once.
                    if is_silent(error) and self._try_next():
                        failures += 1
                        continue
                    # News cuts the wait short: a daemon that is asked to end has one more try to say so.
                    self._supervisor.changed.clear()
                    await self._pause(_back_off_seconds(failures, self._most_back_off_seconds))
                    failures += 1

    @property
    def is_heard(self) -> bool:
        """Whether the planner answered last time."""
        return self._connected.is_set()

    async def is_connected(self, within_seconds: float) -> bool:
        """Whether the planner answered last time, or does in time."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within_seconds):
                await self._connected.wait()
        return self._connected.is_set()

    async def close(self) -> None:
        for channel in self._channels:
            await channel.close(None)

    def _stub_of_current(self) -> planner_pb2_grpc.DaemonRegistryServiceAsyncStub:
        stub: planner_pb2_grpc.DaemonRegistryServiceAsyncStub = planner_pb2_grpc.DaemonRegistryServiceStub(
            self._channels[self._current]
        )
        return stub

    def _try_next(self) -> bool:
        """Whether there is one to ask before the pause, which comes once all were asked."""
        self._current = (self._current + 1) % len(self._channels)
        self._stub = self._stub_of_current()
        return self._current != 0

    def _patience_seconds(self, most_seconds: float) -> float:
        """How long a call may take: where there is another planner, no longer than from one heartbeat to the next."""
        if len(self._channels) == 1:
            return most_seconds
        return max(LEAST_CALL_SECONDS, self._lease_seconds / BEATS_PER_LEASE)

    async def _why_refused(self) -> str:
        """Nothing where TLS is not the reason."""
        if self._credentials is None:
            return ""
        return await asyncio.to_thread(why_refused, self._addresses[self._current], self._credentials.files)

    async def _register(self) -> float:
        answer = await self._stub.RegisterDaemon(self._request, timeout=self._patience_seconds(CALL_SECONDS))
        self._lease_seconds = answer.lease_seconds
        self._connected.set()
        self._taken_since = None
        self._supervisor.changed.set()
        if not self.registered.is_set():
            log.info("registered", device_id=self._request.device.id, lease_seconds=answer.lease_seconds)
        self.registered.set()
        return answer.lease_seconds

    async def _pause(self, seconds: float) -> None:
        """Until the next beat is due, or there is news that cannot wait."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._supervisor.changed.wait()

    async def _beat(self, lease_seconds: float) -> float:
        self._supervisor.changed.clear()
        request = planner_pb2.HeartbeatRequest(
            device_id=self._request.device.id,
            incarnation_id=self._request.incarnation_id,
            deployments=self._supervisor.report(),
            leaving=self._supervisor.is_leaving,
        )
        self._reported = {deployment.deployment_id: deployment.generation for deployment in request.deployments}
        answer = await self._stub.Heartbeat(
            request, timeout=self._patience_seconds(max(LEAST_CALL_SECONDS, lease_seconds))
        )
        self._let_go(answer.release_deployment_ids)
        return answer.lease_seconds

    async def _judge(self, error: grpc.aio.AioRpcError) -> None:
        """Raises Conflict where asking again cannot help."""
        info = _error_info(error)
        if info.reason in FATAL_REASONS:
            raise Conflict(f"the planner refuses this daemon: {error.details()}") from error
        if info.reason != TAKEN:
            return
        self._taken_since = self._taken_since or time.monotonic()
        if self._supervisor.holds_work:
            await self._ask_what_ended()
            return
        patience_seconds = LEASES_UNTIL_TAKEN * float(info.metadata["lease_seconds"] or DEFAULT_LEASE_SECONDS)
        if time.monotonic() - self._taken_since > patience_seconds:
            raise Conflict(f"the planner refuses this daemon: {error.details()}") from error

    async def _ask_what_ended(self) -> None:
        """A heartbeat of one that lost its device is refused; the refusal says what it need not hold any longer."""
        try:
            await self._beat(CALL_SECONDS)
        except grpc.aio.AioRpcError as error:
            self._let_go(filter(None, _error_info(error).metadata["release_deployment_ids"].split(",")))

    def _let_go(self, deployment_ids: Iterable[str]) -> None:
        for deployment_id in deployment_ids:
            # A later one may have come since this daemon told what it holds.
            generation = self._reported.get(deployment_id)
            task = asyncio.create_task(self._supervisor.release(deployment_id, 0.0, generation))
            self._releases.add(task)
            task.add_done_callback(self._releases.discard)


def _error_info(error: grpc.aio.AioRpcError) -> error_details_pb2.ErrorInfo:
    """Empty where the error has none."""
    info = error_details_pb2.ErrorInfo()
    status = rpc_status.from_call(error)  # type: ignore[arg-type]
    for detail in status.details if status is not None else ():
        if detail.Unpack(info):
            break
    return info


def _back_off_seconds(failures: int, most_seconds: float) -> float:
    """Doubles, and differs from daemon to daemon, so that a planner that is back is not overrun."""
    longest = min(most_seconds, FIRST_BACK_OFF_SECONDS * 2 ** min(failures, 10))
    return random.uniform(longest / 2, longest)
