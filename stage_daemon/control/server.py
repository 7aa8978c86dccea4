"""The daemon's gRPC server: its service, health and reflection."""

from __future__ import annotations

import socket
from dataclasses import dataclass

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1._async import HealthServicer
from grpc_reflection.v1alpha import reflection

from access.channels import TAKES_KEEPALIVE, server_credentials, server_options
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """Where others reach the daemon."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_endpoint(text: str, default_port: int = 0) -> Endpoint:
    """Raises InvalidRequest."""
    host, separator, port = text.rpartition(":")
    if not separator or text.endswith("]"):
        host, port = text, str(default_port)
    if not port.isdecimal() or int(port) > 65535:
        raise InvalidRequest(f"address {text!r} has no port from 0 to 65535; write host:port")
    return Endpoint(host=host.strip("[]"), port=int(port))


def advertised(advertise: str, listen: Endpoint, port: int) -> Endpoint:
    """What was asked for, else where it listens; a daemon that listens everywhere is known by its host's name."""
    if advertise:
        endpoint = parse_endpoint(advertise, port)
        return endpoint if endpoint.port else Endpoint(host=endpoint.host, port=port)
    return Endpoint(host=socket.gethostname() if listen.host in _EVERYWHERE else listen.host, port=port)


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
        endpoint = parse_endpoint(listen)
        try:
            if credentials is None:
                port = self._server.add_insecure_port(str(endpoint))
            else:
                port = self._server.add_secure_port(str(endpoint), server_credentials(credentials))
        except RuntimeError as error:
            raise Unavailable(f"cannot listen on {listen}: {error}; take a free port, or port 0") from None
        self.endpoint = advertised(advertise, endpoint, port)
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
