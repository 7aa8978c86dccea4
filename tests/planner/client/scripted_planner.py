"""A planner's service whose answers a test writes down: for what a real server cannot be brought to say on demand."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent import futures
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc
from google.protobuf.message import Message
from grpc_status import rpc_status

from planner.api.status import status_of
from planner.errors import PlannerError
from protos.v1 import access_pb2, access_pb2_grpc, planner_pb2, planner_pb2_grpc


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """A status without details, as a proxy or another server would send it."""

    code: grpc.StatusCode
    message: str = "refused"


# What a stream sends; a refusal ends it. For a call that answers once, the first.
Answer = Message | Refusal | PlannerError | Iterable["Message | Refusal | PlannerError"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    method: str
    request: Any
    # Until the deadline that the client set; None without one.
    remaining_seconds: float | None


@dataclass(slots=True)
class ScriptedPlanner:
    """`answers[method]` holds what each call in turn is answered; the last one is given again and again."""

    answers: dict[str, list[Answer | Callable[[Any], Answer]]] = field(default_factory=dict)
    calls: list[Call] = field(default_factory=list)
    ended: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))

    def on(self, method: str, *answers: Answer | Callable[[Any], Answer]) -> None:
        self.answers[method] = list(answers)

    def requests(self, method: str) -> list[Any]:
        return [call.request for call in self.calls if call.method == method]

    def _answer(self, method: str, request: Any, context: grpc.ServicerContext) -> Iterator[Any]:
        context.add_callback(self.ended.release)
        requests = request if isinstance(request, Message) else list(_until_broken(request))
        self.calls.append(Call(method=method, request=requests, remaining_seconds=context.time_remaining()))
        if method not in self.answers:
            context.abort(grpc.StatusCode.UNIMPLEMENTED, f"{method} is not in the script")
        script = self.answers[method]
        answer = script.pop(0) if len(script) > 1 else script[0]
        if callable(answer):
            answer = answer(requests)
        parts = [answer] if isinstance(answer, (Message, Refusal, PlannerError)) else answer
        for part in parts:
            if isinstance(part, Refusal):
                context.abort(part.code, part.message)
            if isinstance(part, PlannerError):
                context.abort_with_status(rpc_status.to_status(status_of(part)))
            yield part

    def servicer(self) -> planner_pb2_grpc.PlannerServiceServicer:
        servicer = planner_pb2_grpc.PlannerServiceServicer()
        for method in planner_pb2.DESCRIPTOR.services_by_name["PlannerService"].methods:
            setattr(servicer, method.name, self._handler(method.name, method.server_streaming))
        return servicer

    def _handler(self, name: str, streams: bool) -> Callable[[Any, grpc.ServicerContext], Any]:
        if streams:
            return lambda request, context: self._answer(name, request, context)
        return lambda request, context: next(iter(self._answer(name, request, context)))


def _until_broken(requests: Iterator[Any]) -> Iterator[Any]:
    try:
        yield from requests
    except grpc.RpcError:
        return


class Tickets(access_pb2_grpc.AccessServiceServicer):
    """Gives everyone one."""

    def CreateTicket(self, request: access_pb2.CreateTicketRequest, context: grpc.ServicerContext) -> access_pb2.Ticket:
        return access_pb2.Ticket(ticket="ticket")


@contextmanager
def scripted_planner() -> Iterator[tuple[ScriptedPlanner, str]]:
    """The script, and the address of the server that keeps to it."""
    script = ScriptedPlanner()
    server = grpc.server(
        futures.ThreadPoolExecutor(8),
        options=[("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)],
    )
    planner_pb2_grpc.add_PlannerServiceServicer_to_server(script.servicer(), server)
    access_pb2_grpc.add_AccessServiceServicer_to_server(Tickets(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield script, f"127.0.0.1:{port}"
    finally:
        server.stop(grace=None).wait()
