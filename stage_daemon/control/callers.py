"""Who may call what, over TLS: one row per method. Commands, with the addresses in them, are the planner's alone."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from enum import Enum
from typing import Any

import grpc

from access.errors import AccessError
from access.files import WatchedCredentials
from access.handlers import prepared
from access.peers import peer_of
from protos.v1 import stage_daemon_pb2
from stage_daemon.errors import Forbidden

Context = grpc.aio.ServicerContext[Any, Any]
_SERVICE = stage_daemon_pb2.DESCRIPTOR.services_by_name["StageDaemonService"].full_name


class Caller(Enum):
    PLANNER = "planner"
    # Whoever has a certificate of the authorities, and a ticket of the deployment.
    CLIENT = "client"


CALLERS: Mapping[str, Caller] = {
    "LoadStages": Caller.PLANNER,
    "OpenRendezvous": Caller.PLANNER,
    "ConnectStages": Caller.PLANNER,
    "ReleaseDeployment": Caller.PLANNER,
    "GetDaemonStatus": Caller.PLANNER,
    "Profile": Caller.PLANNER,
    "SendInputs": Caller.CLIENT,
    "ReceiveOutputs": Caller.CLIENT,
    "Train": Caller.CLIENT,
    "SaveSnapshot": Caller.CLIENT,
    "GetTimeline": Caller.CLIENT,
}


class CallerInterceptor(grpc.aio.ServerInterceptor):
    """Of the daemon's own service; health and reflection tell nothing that a stranger may not know."""

    def __init__(self, planner_identity: str, credentials: WatchedCredentials) -> None:
        self._planner_identity = planner_identity
        self._credentials = credentials

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        handler = await continuation(handler_call_details)
        service, _, method = handler_call_details.method.lstrip("/").partition("/")
        if handler is None or service != _SERVICE:
            return handler
        caller = CALLERS.get(method)

        async def check(_: Any, context: Context) -> None:
            self._check(method, caller, context)

        return prepared(handler, check)

    def _check(self, method: str, caller: Caller | None, context: Context) -> None:
        """Raises Forbidden."""
        try:
            peer = peer_of(context.auth_context(), self._credentials)
        except AccessError as error:
            raise Forbidden(error.message) from None
        if peer is None:
            raise Forbidden(f"{method} needs a certificate, and the caller shows none")
        if caller is None:
            raise Forbidden(f"{method} has no row that says who may call it")
        if caller is Caller.PLANNER and self._planner_identity not in peer.names:
            raise Forbidden(
                f"{method} is the planner's alone: the caller's certificate is for {peer}, not for "
                f"{self._planner_identity} (setting planner_identity)"
            )
