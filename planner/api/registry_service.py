"""DaemonRegistryService: what stage-daemons call."""

from __future__ import annotations

from typing import Any

from access.addresses import Endpoint, parse_endpoint
from access.errors import WrongAddress
from access.peers import peer_of
from planner.dispatch.dispatcher import Dispatcher, HeldDeployment
from planner.dispatch.messages import failure_from_proto
from planner.errors import Forbidden, InvalidArgument
from planner.store.deployment_records import Failure
from planner.wire.inventory import inventory_from_proto
from protos.v1 import inventory_pb2, planner_pb2, planner_pb2_grpc


class DaemonRegistryService(planner_pb2_grpc.DaemonRegistryServiceServicer):
    def __init__(self, dispatcher: Dispatcher) -> None:
        self._dispatcher = dispatcher

    async def RegisterDaemon(
        self, request: planner_pb2.RegisterDaemonRequest, context: Any
    ) -> planner_pb2.RegisterDaemonResponse:
        _check_is_at(_reached_at(request.address).host, context)
        if not request.incarnation_id:
            raise InvalidArgument("incarnation_id is empty; make a new one at each start of the daemon")
        lease_seconds = await self._dispatcher.register(
            inventory_from_proto(inventory_pb2.Inventory(devices=[request.device])).devices[0],
            request.address,
            request.torch_version,
            request.incarnation_id,
        )
        return planner_pb2.RegisterDaemonResponse(lease_seconds=lease_seconds)

    async def Heartbeat(self, request: planner_pb2.HeartbeatRequest, _: Any) -> planner_pb2.HeartbeatResponse:
        lease_seconds, ended = await self._dispatcher.heartbeat(
            request.device_id,
            request.incarnation_id,
            [_held(message) for message in request.deployments],
            leaving=request.leaving,
        )
        return planner_pb2.HeartbeatResponse(lease_seconds=lease_seconds, release_deployment_ids=ended)


def _check_is_at(host: str, context: Any) -> None:
    """A daemon whose certificate is not for its address could not be called, or is not the one that answers there."""
    peer = peer_of(context.auth_context())
    if peer is not None and host not in peer.names:
        raise Forbidden(
            f"the daemon says that it is reached at {host[:80]}, and its certificate is for {peer}: "
            "give it a certificate for that host, or --advertise one of its names"
        )


def _reached_at(address: str) -> Endpoint:
    try:
        endpoint = parse_endpoint(address)
    except WrongAddress as error:
        raise InvalidArgument(error.message) from None
    if not (endpoint.host and endpoint.port):
        raise InvalidArgument(f"address {address[:80]!r} names no host or no port at which the daemon is reached")
    return endpoint


def _held(message: planner_pb2.DeploymentOnDaemon) -> HeldDeployment:
    return HeldDeployment(
        deployment_id=message.deployment_id,
        generation=message.generation,
        failure=_failure(message),
    )


def _failure(message: planner_pb2.DeploymentOnDaemon) -> Failure | None:
    return failure_from_proto(message.failure) if message.state == planner_pb2.WORKER_STATE_FAILED else None
