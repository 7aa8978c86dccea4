"""Deployments and live devices over gRPC."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from planner.api.identity import fingerprint
from planner.api.pages import page_of
from planner.api.principals import CALLER
from planner.cost.inventory import Inventory
from planner.cost.measured import MAX_THREADS
from planner.dispatch.dispatcher import Dispatcher
from planner.dispatch.messages import (
    deployment_to_proto,
    event_to_proto,
    recovery_from_proto,
    state_from_proto,
    timestamp,
)
from planner.errors import InvalidArgument
from planner.store.claims import database_now
from planner.store.daemons import list_live_daemons
from planner.store.database import Database
from planner.store.deployment_records import WorkerSettings
from planner.store.deployments import delete_deployment, get_deployment, list_active_deployments, list_deployments
from planner.wire.inventory import inventory_to_proto
from protos.v1 import planner_pb2


class DeploymentCalls:
    _database: Database
    _dispatcher: Dispatcher

    async def Deploy(self, request: planner_pb2.DeployRequest, _: Any) -> planner_pb2.Deployment:
        if not request.plan_id:
            raise InvalidArgument("plan_id is empty; name the plan to deploy")
        if request.num_threads > MAX_THREADS:
            raise InvalidArgument(f"num_threads is {request.num_threads}, needs at most {MAX_THREADS}")
        deployment_id = await self._dispatcher.deploy(
            request.plan_id,
            request.request_id,
            await fingerprint(request),
            recovery_from_proto(request.recovery),
            WorkerSettings(num_threads=request.num_threads, compile=request.compile),
            CALLER.get(),
        )
        return await self._deployment(deployment_id)

    async def GetDeployment(self, request: planner_pb2.GetDeploymentRequest, _: Any) -> planner_pb2.Deployment:
        return await self._deployment(request.deployment_id)

    async def ListDeployments(
        self, request: planner_pb2.ListDeploymentsRequest, _: Any
    ) -> planner_pb2.ListDeploymentsResponse:
        state = state_from_proto(request.state)
        page = page_of(
            request,
            "deployment",
            plan=request.plan_id,
            graph=request.graph_id,
            state=state,
            active_only=request.active_only,
        )
        async with self._database.reading() as session:
            deployments, token = await list_deployments(
                session,
                page,
                plan_id=request.plan_id,
                graph_id=request.graph_id,
                state=state,
                active_only=request.active_only,
            )
        return planner_pb2.ListDeploymentsResponse(
            deployments=[deployment_to_proto(deployment) for deployment in deployments], next_page_token=token
        )

    async def WatchDeployment(
        self, request: planner_pb2.WatchDeploymentRequest, _: Any
    ) -> AsyncIterator[planner_pb2.DeploymentEvent]:
        async for event in self._dispatcher.watch(request.deployment_id, request.after_sequence):
            yield event_to_proto(event)

    async def StopDeployment(self, request: planner_pb2.StopDeploymentRequest, _: Any) -> planner_pb2.Deployment:
        await self._dispatcher.stop(request.deployment_id)
        return await self._deployment(request.deployment_id)

    async def DeleteDeployment(
        self, request: planner_pb2.DeleteDeploymentRequest, _: Any
    ) -> planner_pb2.DeleteDeploymentResponse:
        async with self._database.session() as session:
            await delete_deployment(session, request.deployment_id)
        return planner_pb2.DeleteDeploymentResponse(id=request.deployment_id)

    async def ListDevices(self, request: planner_pb2.ListDevicesRequest, _: Any) -> planner_pb2.ListDevicesResponse:
        async with self._database.reading() as session:
            daemons = await list_live_daemons(session, await database_now(session))
            active = await list_active_deployments(session)
        return planner_pb2.ListDevicesResponse(
            devices=[
                planner_pb2.RegisteredDevice(
                    device=inventory_to_proto(Inventory(devices=(daemon.device,))).devices[0],
                    daemon_address=daemon.address,
                    lease_expires_at=timestamp(daemon.lease_expires_at),
                    deployment_ids=[
                        deployment.id for deployment in active if daemon.device.id in deployment.device_ids()
                    ],
                    torch_version=daemon.torch_version,
                    draining=daemon.draining,
                )
                for daemon in daemons
                if _matches(daemon.device.kind.lower(), request.kind.lower())
                and _matches(daemon.device.host, request.host)
            ]
        )

    async def DrainDevice(self, request: planner_pb2.DrainDeviceRequest, _: Any) -> planner_pb2.DrainDeviceResponse:
        stays = await self._dispatcher.drain(request.device_id, undo=request.undo)
        return planner_pb2.DrainDeviceResponse(
            deployments=[
                planner_pb2.DeploymentOnDrainedDevice(deployment_id=deployment_id, stays_because=why)
                for deployment_id, why in stays.items()
            ]
        )

    async def _deployment(self, deployment_id: str) -> planner_pb2.Deployment:
        async with self._database.reading() as session:
            return deployment_to_proto(await get_deployment(session, deployment_id))


def _matches(value: str, filter_value: str) -> bool:
    return not filter_value or value == filter_value
