"""The daemon's gRPC server: its service, health and reflection."""

from __future__ import annotations

import socket
from dataclasses import replace

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1._async import HealthServicer
from grpc_reflection.v1alpha import reflection

from access.addresses import Endpoint, parse_endpoint
from access.channels import TAKES_KEEPALIVE, bind, server_options
from access.errors import CannotListen
from access.files import WatchedCredentials
from access.large_answers import LargeAnswersInterceptor
from access.metrics import ServiceMetrics
from access.peers import PLANNER_ROLE
from access.request_sizes import RequestSizesInterceptor
from protos.v1 import stage_daemon_pb2, stage_daemon_pb2_grpc
from stage_daemon.control.callers import CallerInterceptor, most_bytes
from stage_daemon.control.service import StageDaemonService
from stage_daemon.control.sessions import CallersSessions
from stage_daemon.control.status import StatusInterceptor
from stage_daemon.control.supervisor import Supervisor
from stage_daemon.errors import InvalidRequest, Unavailable

MAX_MESSAGE_BYTES = 1 << 30
# With which the names of its metrics begin.
SERVICE = "stage_daemon"
SERVICE_NAME = stage_daemon_pb2.DESCRIPTOR.services_by_name["StageDaemonService"].full_name
_EVERYWHERE = frozenset({"0.0.0.0", "::", ""})


def advertised(advertise: str, bound: Endpoint) -> Endpoint:
    """What was asked for, else where it listens; a daemon that listens everywhere is known by its host's name."""
    if advertise:
        endpoint = parse_endpoint(advertise, bound.port)
        return endpoint if endpoint.port else replace(endpoint, port=bound.port)
    return replace(bound, host=socket.gethostname()) if bound.host in _EVERYWHERE else bound


class DaemonServer:
    """Bound once it is made; serves from `start`."""

    def __init__(
        self,
        listen: str,
        advertise: str,
        supervisor: Supervisor,
        credentials: WatchedCredentials | None = None,
        planner_identity: str = PLANNER_ROLE,
        metrics: ServiceMetrics | None = None,
        *,
        max_sessions_per_caller: int,
    ) -> None:
        options = [
            *(server_options() if credentials else ()),
            ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
            ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
            ("grpc.so_reuseport", 0),
            *TAKES_KEEPALIVE,
        ]
        # Outermost first: what the callers' one raises, the status one answers.
        interceptors: list[grpc.aio.ServerInterceptor] = [
            LargeAnswersInterceptor(),
            StatusInterceptor(metrics or ServiceMetrics(SERVICE)),
            RequestSizesInterceptor(most_bytes, InvalidRequest),
        ]
        if credentials is not None:
            interceptors.append(CallerInterceptor(planner_identity, credentials))
        self._server = grpc.aio.server(interceptors=interceptors, options=options)
        try:
            self.endpoint = advertised(advertise, bind(self._server, parse_endpoint(listen, 0), credentials))
        except CannotListen as error:
            raise Unavailable(error.message) from None
        callers = CallersSessions(max_sessions_per_caller)
        service = StageDaemonService(supervisor, self.endpoint.host, callers)
        stage_daemon_pb2_grpc.add_StageDaemonServiceServicer_to_server(service, self._server)
        self._health = HealthServicer()
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        reflection.enable_server_reflection(
            (SERVICE_NAME, health_pb2.DESCRIPTOR.services_by_name["Health"].full_name, reflection.SERVICE_NAME),
            self._server,
        )

    async def start(self) -> None:
        await self._server.start()
        for name in ("", SERVICE_NAME):
            await self._health.set(name, health_pb2.HealthCheckResponse.SERVING)

    async def stop(self, grace_seconds: float) -> None:
        await self._health.enter_graceful_shutdown()
        await self._server.stop(grace_seconds)
