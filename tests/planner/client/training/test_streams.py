"""What daemons answer to a trainer: never to another question than the one that was asked."""

from __future__ import annotations

import queue
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import Any

import grpc
import pytest

from planner.client.training.streams import StepRequest, TrainingStreams
from planner.errors import StepNotApplied, Unavailable
from protos.v1 import planner_pb2, stage_daemon_pb2, stage_daemon_pb2_grpc
from stage_daemon.runtime.ingress import Ingress, InputFormat
from stage_daemon.worker.door import Door
from tests.waiting import WAIT_SECONDS

pytestmark = pytest.mark.services


class Daemon(stage_daemon_pb2_grpc.StageDaemonServiceServicer):
    """Answers each step with its number, once it may."""

    def __init__(self) -> None:
        self.may_answer = threading.Event()
        self.may_answer.set()
        self.fails = False

    def Train(self, requests: Any, _: Any) -> Iterator[stage_daemon_pb2.TrainResponse]:
        for request in requests:
            self.may_answer.wait(WAIT_SECONDS)
            if self.fails:
                yield stage_daemon_pb2.TrainResponse(failure=planner_pb2.Failure(reason="STEP_NOT_APPLIED"))
            else:
                yield stage_daemon_pb2.TrainResponse(step=stage_daemon_pb2.StepDone(gradient_norm=request.step.number))


@contextmanager
def serving(daemon: Daemon) -> Iterator[grpc.Channel]:
    with ThreadPoolExecutor(4) as threads:
        server = grpc.server(threads)
        stage_daemon_pb2_grpc.add_StageDaemonServiceServicer_to_server(daemon, server)
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
            yield channel
        server.stop(0).wait()


@contextmanager
def opened(daemons: dict[str, Daemon], deadline_seconds: float = WAIT_SECONDS) -> Iterator[TrainingStreams]:
    with ExitStack() as stack:
        channels = {name: stack.enter_context(serving(daemon)) for name, daemon in daemons.items()}
        streams = TrainingStreams(channels, "a daemon does not answer", deadline_seconds)
        stack.callback(streams.close)
        yield streams


def numbers(streams: TrainingStreams, number: int) -> list[float]:
    request = stage_daemon_pb2.TrainRequest(step=stage_daemon_pb2.TrainingStep(number=number))
    answers = streams.ask(dict.fromkeys(streams.device_ids, request))
    return [responses[-1].step.gradient_norm for responses in answers.values()]


def test_an_answer_that_comes_too_late_is_not_that_to_the_next_question() -> None:
    daemons = {"a": Daemon(), "b": Daemon()}
    with opened(daemons, deadline_seconds=1.0) as streams:
        daemons["a"].may_answer.clear()
        with pytest.raises(Unavailable, match="no answer from the daemon of a within 1 s"):
            numbers(streams, 1)
        daemons["a"].may_answer.set()
        with pytest.raises(Unavailable, match="the daemon of a"):
            numbers(streams, 2)


def test_after_a_step_that_was_not_applied_the_next_is_answered() -> None:
    daemons = {"a": Daemon(), "b": Daemon()}
    with opened(daemons) as streams:
        assert numbers(streams, 1) == [1, 1]
        daemons["a"].fails = True
        with pytest.raises(StepNotApplied):
            numbers(streams, 2)
        daemons["a"].fails = False
        assert numbers(streams, 3) == [3, 3]


class DaemonWithDoor(Daemon):
    """Its worker lets trainers in, and answers nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.trainers: queue.SimpleQueue[socket.socket] = queue.SimpleQueue()
        self.door = Door(
            Ingress(lambda _: None),
            InputFormat(values=(), symbols={}),
            lambda _: None,
            on_trainer=lambda session_id, connection: self.trainers.put(connection) is None,
        )

    def Train(self, requests: Any, context: Any) -> Iterator[stage_daemon_pb2.TrainResponse]:
        for request in requests:
            if request.WhichOneof("content") == "open":
                opened = stage_daemon_pb2.TrainingOpened(door=self.door.address(), session_id=1)
                yield stage_daemon_pb2.TrainResponse(opened=opened)
            else:
                yield from super().Train([request], context)


@pytest.mark.parametrize("asks_first", [True, False])
def test_a_door_that_closes_answers_no_step(asks_first: bool) -> None:
    """The worker may live, and what the daemon answers then is no answer to the step."""
    daemon = DaemonWithDoor()
    with opened({"a": daemon}) as streams:
        streams.ask({"a": stage_daemon_pb2.TrainRequest(open=stage_daemon_pb2.OpenTraining())})
        trainer = daemon.trainers.get(timeout=WAIT_SECONDS)
        step = StepRequest(step=stage_daemon_pb2.TrainingStep(number=1))
        if asks_first:
            closing = threading.Thread(target=lambda: trainer.recv(1 << 16) and trainer.close())
            closing.start()
        else:
            trainer.close()
        with pytest.raises(Unavailable, match="the worker of a has ended the training"):
            streams.ask({"a": step})
