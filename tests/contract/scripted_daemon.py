"""A daemon that speaks the protocol and loads nothing: it does what a test tells it to, and keeps what it was asked."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
from google.protobuf import any_pb2
from google.rpc import code_pb2, error_details_pb2, status_pb2
from grpc_status import rpc_status

from protos.v1 import inventory_pb2, planner_pb2, stage_daemon_pb2, stage_daemon_pb2_grpc

GIBIBYTE = 1 << 30


class ScriptedDaemon(stage_daemon_pb2_grpc.StageDaemonServiceServicer):
    """`fail_on` names a call that is refused; `crash_on` one that breaks; `hold` one that waits until `resume` is set.

    Each stage loads in `num_steps`, of which the daemon tells one by one.
    """

    def __init__(self, device_id: str, incarnation_id: str = "first") -> None:
        self.device_id = device_id
        self.incarnation_id = incarnation_id
        self.address = ""
        self.fail_on = ""
        self.crash_on = ""
        self.refusal: dict[str, str] = {}
        self.hold = ""
        self.num_steps = 2
        self.num_threads = self.num_neighbours = 0
        self.compiled_difference: float | None = None
        # Of the last profile; None where the caller set no deadline.
        self.remaining_seconds: float | None = None
        self.resume = asyncio.Event()
        self.asked: list[str] = []
        self.cancelled: list[str] = []
        self.profiles: list[stage_daemon_pb2.ProfileRequest] = []
        self.loads: list[stage_daemon_pb2.LoadStagesRequest] = []
        self.connects: list[stage_daemon_pb2.ConnectStagesRequest] = []
        self.releases: list[stage_daemon_pb2.ReleaseDeploymentRequest] = []
        self.standing: list[planner_pb2.DeploymentOnDaemon] = []
        self._server = grpc.aio.server()

    async def start(self) -> None:
        stage_daemon_pb2_grpc.add_StageDaemonServiceServicer_to_server(self, self._server)
        self.address = f"127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"
        await self._server.start()

    async def stop(self) -> None:
        await self._server.stop(0)

    async def register(
        self, registry: Any, memory_bytes: int = GIBIBYTE, host: str = "node"
    ) -> planner_pb2.RegisterDaemonResponse:
        device = inventory_pb2.Device(id=self.device_id, kind="cpu", host=host, memory_bytes=memory_bytes)
        request = planner_pb2.RegisterDaemonRequest(
            device=device, address=self.address, torch_version="2.13.0", incarnation_id=self.incarnation_id
        )
        return await registry.RegisterDaemon(request, timeout=30)

    async def beat(
        self, registry: Any, *deployments: planner_pb2.DeploymentOnDaemon, leaving: bool = False
    ) -> planner_pb2.HeartbeatResponse:
        request = planner_pb2.HeartbeatRequest(
            device_id=self.device_id, incarnation_id=self.incarnation_id, deployments=deployments, leaving=leaving
        )
        return await registry.Heartbeat(request, timeout=30)

    async def LoadStages(
        self, request: stage_daemon_pb2.LoadStagesRequest, context: Any
    ) -> AsyncIterator[stage_daemon_pb2.LoadStagesResponse]:
        self.loads.append(request)
        for module in request.stages:
            yield stage_daemon_pb2.LoadStagesResponse(stage=module.stage, loaded_bytes=0, total_bytes=self.num_steps)
        await self._play("load", context)
        for module in request.stages:
            for loaded in range(1, self.num_steps + 1):
                yield stage_daemon_pb2.LoadStagesResponse(
                    stage=module.stage,
                    loaded_bytes=loaded,
                    total_bytes=self.num_steps,
                    num_threads=self.num_threads,
                    compiled_difference=self.compiled_difference,
                )

    async def OpenRendezvous(
        self, request: stage_daemon_pb2.OpenRendezvousRequest, context: Any
    ) -> stage_daemon_pb2.OpenRendezvousResponse:
        await self._play("rendezvous", context)
        return stage_daemon_pb2.OpenRendezvousResponse(address="store:1")

    async def ConnectStages(
        self, request: stage_daemon_pb2.ConnectStagesRequest, context: Any
    ) -> stage_daemon_pb2.ConnectStagesResponse:
        self.connects.append(request)
        await self._play("connect", context)
        return stage_daemon_pb2.ConnectStagesResponse()

    async def ReleaseDeployment(
        self, request: stage_daemon_pb2.ReleaseDeploymentRequest, context: Any
    ) -> stage_daemon_pb2.ReleaseDeploymentResponse:
        self.releases.append(request)
        await self._play("release", context)
        return stage_daemon_pb2.ReleaseDeploymentResponse()

    async def Profile(
        self, request: stage_daemon_pb2.ProfileRequest, context: Any
    ) -> AsyncIterator[stage_daemon_pb2.ProfileResponse]:
        """Nodes 0 and 2 are alike and take half a second, node 3 a quarter; node 1 cannot be timed."""
        self.profiles.append(request)
        self.remaining_seconds = context.time_remaining()
        node = stage_daemon_pb2.DistinctNode
        alike = node(nodes=[0, 2], seconds=0.5)
        yield stage_daemon_pb2.ProfileResponse(
            num_done=1,
            num_distinct=3,
            measured=[alike],
            num_threads=self.num_threads,
            num_neighbours=self.num_neighbours,
        )
        await self._play("profile", context)
        others = [node(nodes=[3], seconds=0.25), node(nodes=[1], unmeasured_reason="it reads a file")]
        yield stage_daemon_pb2.ProfileResponse(num_done=3, num_distinct=3, measured=others)

    async def GetDaemonStatus(
        self, request: stage_daemon_pb2.GetDaemonStatusRequest, context: Any
    ) -> stage_daemon_pb2.GetDaemonStatusResponse:
        await self._play("status", context)
        return stage_daemon_pb2.GetDaemonStatusResponse(
            device_id=self.device_id, incarnation_id=self.incarnation_id, deployments=self.standing
        )

    async def _play(self, call: str, context: Any) -> None:
        self.asked.append(call)
        if self.hold == call:
            await self._wait(call)
        if self.crash_on == call:
            raise RuntimeError(f"{call} broke")
        if self.fail_on == call:
            info = error_details_pb2.ErrorInfo(
                reason="SHAPE_MISMATCH", domain="partition_planner", metadata=self.refusal
            )
            detail = any_pb2.Any()
            detail.Pack(info)
            refusal = status_pb2.Status(
                code=code_pb2.FAILED_PRECONDITION, message=f"{call} went wrong", details=[detail]
            )
            status = rpc_status.to_status(refusal)
            await context.abort(status.code, status.details, status.trailing_metadata)

    async def _wait(self, call: str) -> None:
        try:
            await self.resume.wait()
        except asyncio.CancelledError:
            self.cancelled.append(call)
            raise


def standing(
    deployment_id: str, *, reason: str = "", message: str = "killed", edge: str = ""
) -> planner_pb2.DeploymentOnDaemon:
    """RUNNING, or FAILED where there is a reason."""
    if not reason:
        return planner_pb2.DeploymentOnDaemon(
            deployment_id=deployment_id, generation=1, state=planner_pb2.WORKER_STATE_RUNNING
        )
    return planner_pb2.DeploymentOnDaemon(
        deployment_id=deployment_id,
        generation=1,
        state=planner_pb2.WORKER_STATE_FAILED,
        failure=planner_pb2.Failure(reason=reason, message=message, metadata={"edge": edge} if edge else {}),
    )
