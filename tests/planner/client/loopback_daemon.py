"""A daemon's data path alone: it gives every microbatch back, so that sessions can be tested without a model."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent import futures
from contextlib import contextmanager

import grpc
import pytest

from planner.client.pipeline import Pipeline
from planner.client.records import Deployment
from planner.client.session import Session
from planner.errors import DeploymentFailed
from planner.graph.expression import SymbolReference
from planner.graph.ir import (
    Dtype,
    Graph,
    Input,
    Output,
    Symbol,
    TreeDict,
    TreeLeaf,
    TreeTuple,
    Value,
    ValueKind,
    ValueReference,
)
from protos.v1 import planner_pb2, stage_daemon_pb2, stage_daemon_pb2_grpc

FindNext = Callable[[str, int], Deployment | None]


class LoopbackDaemon(stage_daemon_pb2_grpc.StageDaemonServiceServicer):
    """Holds results back while `gate` is closed; fails the sequences in `failing`; ends sessions at `ends_at`."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.gate.set()
        self.failing: set[int] = set()
        self.ends_at = 0
        self.received: list[int] = []
        self.generations: list[int] = []
        self.ended_streams = threading.Semaphore(0)
        self._sessions: dict[int, queue.SimpleQueue[stage_daemon_pb2.Microbatch]] = {}

    def ReceiveOutputs(
        self, request: stage_daemon_pb2.ReceiveOutputsRequest, context: grpc.ServicerContext
    ) -> Iterator[stage_daemon_pb2.ReceiveOutputsResponse]:
        arrivals: queue.SimpleQueue[stage_daemon_pb2.Microbatch] = queue.SimpleQueue()
        self._sessions[request.open.session_id] = arrivals
        yield stage_daemon_pb2.ReceiveOutputsResponse()
        while context.is_active():
            try:
                microbatch = arrivals.get(timeout=0.05)
            except queue.Empty:
                continue
            while not self.gate.wait(0.05) and context.is_active():
                pass
            if microbatch.sequence == self.ends_at:
                context.abort(grpc.StatusCode.UNAVAILABLE, "the worker died")
            yield self._answer(microbatch)

    def SendInputs(
        self, requests: Iterator[stage_daemon_pb2.SendInputsRequest], context: grpc.ServicerContext
    ) -> Iterator[stage_daemon_pb2.SendInputsResponse]:
        context.add_callback(self.ended_streams.release)
        opened = next(requests).open
        session = opened.session_id
        self.generations.append(opened.generation)
        if session not in self._sessions:
            context.abort(grpc.StatusCode.FAILED_PRECONDITION, "outputs are not open")
        if opened.host:
            yield stage_daemon_pb2.SendInputsResponse()
        for request in requests:
            self.received.append(request.microbatch.sequence)
            self._sessions[session].put(request.microbatch)
            yield stage_daemon_pb2.SendInputsResponse(sequence=request.microbatch.sequence)

    def _answer(self, microbatch: stage_daemon_pb2.Microbatch) -> stage_daemon_pb2.ReceiveOutputsResponse:
        if microbatch.sequence in self.failing:
            failure = planner_pb2.Failure(reason="STAGE_FAILED", message="index out of range", stage=1, device_id="b")
            return stage_daemon_pb2.ReceiveOutputsResponse(sequence=microbatch.sequence, failure=failure)
        result = stage_daemon_pb2.MicrobatchResult(values=microbatch.values)
        return stage_daemon_pb2.ReceiveOutputsResponse(sequence=microbatch.sequence, result=result)


def identity_graph() -> Graph:
    """{"y": x} for a float32 x of [batch, 3], batch from 1 to 8."""
    return Graph(
        torch_version="2.13.0",
        name="identity",
        symbols=(Symbol(id=1, name="batch", lower=1, upper=8, hint=2),),
        values=(Value(id=1, kind=ValueKind.TENSOR, dtype=Dtype.FLOAT32, dims=(SymbolReference(1), 3), name="x"),),
        inputs=(Input(name="x", content=ValueReference(1)),),
        outputs=(Output(name="y", content=ValueReference(1)),),
        input_tree=TreeTuple((TreeTuple((TreeLeaf(),)), TreeDict((), ()))),
        output_tree=TreeDict(("y",), (TreeLeaf(),)),
    )


@contextmanager
def serving(daemon: LoopbackDaemon) -> Iterator[str]:
    server = grpc.server(futures.ThreadPoolExecutor(8))
    stage_daemon_pb2_grpc.add_StageDaemonServiceServicer_to_server(daemon, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        server.stop(grace=None).wait()


def opened_sessions(monkeypatch: pytest.MonkeyPatch) -> list[Session]:
    """Those that pipelines open from now on, in order."""
    sessions, opens = list[Session](), Session.open

    def opened(session: Session) -> None:
        sessions.append(session)
        opens(session)

    monkeypatch.setattr(Session, "open", opened)
    return sessions


@contextmanager
def loopback_pipeline(
    daemon: LoopbackDaemon,
    *,
    num_copies: int = 1,
    deadline_seconds: float = 120.0,
    why_failed: Callable[[], DeploymentFailed | None] = lambda: None,
    find_next: FindNext | None = None,
    written: Sequence[str] = (),
) -> Iterator[Pipeline]:
    with (
        serving(daemon) as address,
        Pipeline(
            graph=identity_graph(),
            written=written,
            deployment_id="dep-1",
            num_copies=num_copies,
            input_address=address,
            output_address=address,
            deadline_seconds=deadline_seconds,
            why_failed=why_failed,
            generation=1,
            find_next=find_next,
        ) as pipeline,
    ):
        yield pipeline
