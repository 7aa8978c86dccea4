"""The planner as a daemon sees it: it takes registrations and heartbeats, and answers what a test tells it to."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
from google.protobuf import any_pb2
from google.rpc import code_pb2, error_details_pb2, status_pb2
from grpc_status import rpc_status

from protos.v1 import inventory_pb2, planner_pb2, planner_pb2_grpc
from tests.waiting import WAIT_SECONDS, eventually


class Registry(planner_pb2_grpc.DaemonRegistryServiceServicer):
    """`refusals` are the reasons of the next calls' refusals, of either kind, and `facts` what they say besides.

    `release` goes into each answer. One that `hangs` answers nothing.
    """

    def __init__(self, lease_seconds: float = 3600.0) -> None:
        self.address = ""
        self.lease_seconds = lease_seconds
        self.refusals: list[tuple[int, str]] = []
        self.facts: dict[str, str] = {}
        self.release: list[str] = []
        self.registrations: list[planner_pb2.RegisterDaemonRequest] = []
        self.beats: list[planner_pb2.HeartbeatRequest] = []
        self.num_refused = 0
        self.hangs = False

    async def RegisterDaemon(
        self, request: planner_pb2.RegisterDaemonRequest, context: Any
    ) -> planner_pb2.RegisterDaemonResponse:
        await self._refuse(context)
        self.registrations.append(request)
        return planner_pb2.RegisterDaemonResponse(lease_seconds=self.lease_seconds)

    async def Heartbeat(self, request: planner_pb2.HeartbeatRequest, context: Any) -> planner_pb2.HeartbeatResponse:
        await self._refuse(context)
        self.beats.append(request)
        return planner_pb2.HeartbeatResponse(lease_seconds=self.lease_seconds, release_deployment_ids=self.release)

    async def until_beats(self, count: int) -> None:
        async def beaten() -> bool:
            return len(self.beats) >= count

        await eventually(beaten, f"{count} heartbeats")

    async def until_refused(self, count: int) -> None:
        async def refused() -> bool:
            return self.num_refused >= count

        await eventually(refused, f"{count} refusals")

    async def _refuse(self, context: Any) -> None:
        if self.hangs:
            await asyncio.sleep(WAIT_SECONDS)
        if not self.refusals:
            return
        code, reason = self.refusals.pop(0)
        self.num_refused += 1
        detail = any_pb2.Any()
        detail.Pack(error_details_pb2.ErrorInfo(reason=reason, domain="partition_planner", metadata=self.facts))
        refusal = rpc_status.to_status(status_pb2.Status(code=code, message=f"no: {reason}", details=[detail]))
        await context.abort(refusal.code, refusal.details, refusal.trailing_metadata)


UNAVAILABLE = (code_pb2.UNAVAILABLE, "BUSY")
TAKEN = (code_pb2.FAILED_PRECONDITION, "DEVICE_TAKEN")
NOT_FOUND = (code_pb2.NOT_FOUND, "NOT_FOUND")


@asynccontextmanager
async def registry_at(address: str = "127.0.0.1:0") -> AsyncIterator[Registry]:
    registry = Registry()
    server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
    planner_pb2_grpc.add_DaemonRegistryServiceServicer_to_server(registry, server)
    registry.address = f"127.0.0.1:{server.add_insecure_port(address)}"
    await server.start()
    try:
        yield registry
    finally:
        await server.stop(0)


def introduction(device_id: str = "node0/cpu") -> planner_pb2.RegisterDaemonRequest:
    return planner_pb2.RegisterDaemonRequest(
        device=inventory_pb2.Device(id=device_id, kind="cpu", host="node0", memory_bytes=1 << 30),
        address="node0:1",
        incarnation_id="first",
    )
