"""What a call takes: one row per method. Commands, with the addresses in them, are the planner's alone, over TLS."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

import grpc

from access.errors import AccessError
from access.files import WatchedCredentials
from access.handlers import HandlerInterceptor, prepared
from access.peers import peer_of
from protos.v1 import stage_daemon_pb2
from stage_daemon.errors import Forbidden

Context = grpc.aio.ServicerContext[Any, Any]
_SERVICE = stage_daemon_pb2.DESCRIPTOR.services_by_name["StageDaemonService"].full_name


# Of a request that holds ids and words, as one that opens a session does: far more than any names.
WORDS_BYTES = 1 << 20
# Of one with an entry for each state of a stage, or for each value that crosses between stages.
LISTS_BYTES = 1 << 26


class Caller(Enum):
    PLANNER = "planner"
    # Whoever has a certificate of the authorities, and a ticket of the deployment.
    CLIENT = "client"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """A message of more than `most_bytes` is refused before it is parsed.

    Where that is None the service gets the bytes that came: how many a deployment takes, it says itself.
    """

    caller: Caller
    most_bytes: int | None = WORDS_BYTES


RULES: Mapping[str, Rule] = {
    "LoadStages": Rule(caller=Caller.PLANNER, most_bytes=LISTS_BYTES),
    "OpenRendezvous": Rule(caller=Caller.PLANNER),
    "ConnectStages": Rule(caller=Caller.PLANNER, most_bytes=LISTS_BYTES),
    "ReleaseDeployment": Rule(caller=Caller.PLANNER),
    "GetDaemonStatus": Rule(caller=Caller.PLANNER),
    "Profile": Rule(caller=Caller.PLANNER),
    "SendInputs": Rule(caller=Caller.CLIENT, most_bytes=None),
    "ReceiveOutputs": Rule(caller=Caller.CLIENT),
    "Train": Rule(caller=Caller.CLIENT, most_bytes=None),
    "SaveSnapshot": Rule(caller=Caller.CLIENT),
    "GetTimeline": Rule(caller=Caller.CLIENT),
}


def most_bytes(method: str) -> int | None:
    """Of a message to the method of that full name, those of health and reflection too."""
    service, _, name = method.lstrip("/").partition("/")
    rule = RULES.get(name) if service == _SERVICE else None
    return WORDS_BYTES if rule is None else rule.most_bytes


class CallerInterceptor(HandlerInterceptor):
    """Of the daemon's own service; health and reflection tell nothing that a stranger may not know."""

    def __init__(self, planner_identity: str, credentials: WatchedCredentials) -> None:
        self._planner_identity = planner_identity
        self._credentials = credentials

    def around(self, handler: Any, method: str) -> Any:
        service, _, name = method.lstrip("/").partition("/")
        if service != _SERVICE:
            return handler
        rule = RULES.get(name)

        async def check(_: Any, context: Context) -> None:
            self._check(name, rule, context)

        return prepared(handler, check)

    def _check(self, method: str, rule: Rule | None, context: Context) -> None:
        """Raises Forbidden."""
        try:
            peer = peer_of(context.auth_context(), self._credentials)
        except AccessError as error:
            raise Forbidden(error.message) from None
        if peer is None:
            raise Forbidden(f"{method} needs a certificate, and the caller shows none")
        if rule is None:
            raise Forbidden(f"{method} has no row that says who may call it")
        if rule.caller is Caller.PLANNER and self._planner_identity not in peer.names:
            raise Forbidden(
                f"{method} is the planner's alone: the caller's certificate is for {peer}, not for "
                f"{self._planner_identity} (setting planner_identity)"
            )
