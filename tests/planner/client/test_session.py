"""One stream of microbatches: what opens it, what comes out of order, what is left when it closes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import grpc
import pytest

from planner.client.connection import open_channel
from planner.client.session import Session
from planner.errors import Conflict, InvalidArgument, PlannerError, Unavailable
from protos.v1 import stage_daemon_pb2
from tests.planner.client.loopback_daemon import LoopbackDaemon, serving
from tests.planner.client.untold import Untold
from tests.waiting import WAIT_SECONDS

pytestmark = pytest.mark.services

Response = stage_daemon_pb2.ReceiveOutputsResponse


class Misbehaving(LoopbackDaemon):
    """Its stream of results is `answers`, whatever is sent."""

    def __init__(self, answers: Callable[[grpc.ServicerContext], Iterator[Response]]) -> None:
        super().__init__()
        self._answers = answers

    def ReceiveOutputs(
        self, request: stage_daemon_pb2.ReceiveOutputsRequest, context: grpc.ServicerContext
    ) -> Iterator[Response]:
        self._sessions[request.open.session_id] = self._sessions.get(0)  # type: ignore[assignment]
        yield from self._answers(context)


@contextmanager
def session(daemon: LoopbackDaemon, deadline_seconds: float = WAIT_SECONDS) -> Iterator[Session]:
    """Not yet entered."""
    with serving(daemon) as address:
        channel = open_channel(address, message_bytes=1 << 20)
        yield Session(
            generation=0,
            deployment_id="dep-1",
            inputs=channel,
            outputs=channel,
            unreachable=f"nobody answers at {address}",
            deadline_seconds=deadline_seconds,
        )
        channel.close()


def until_left(context: grpc.ServicerContext) -> None:
    has_left = threading.Event()
    context.add_callback(has_left.set)
    has_left.wait(WAIT_SECONDS)


def test_what_is_in_flight_is_what_was_sent_and_not_taken() -> None:
    with session(LoopbackDaemon()) as opened, opened:
        assert opened.num_in_flight == 0
        for number in (1, 2, 3):
            opened.send([number])
            assert opened.num_in_flight == number
        for number in (1, 2, 3):
            answer = opened.take().response
            assert (answer.sequence, answer.result.values[0].integer) == (number, number)
            assert opened.num_in_flight == 3 - number
        assert not opened.has_arrived()


def test_outputs_are_open_before_anything_is_sent() -> None:
    daemon = LoopbackDaemon()
    with session(daemon) as opened, opened:
        opened.send([])
        # A daemon refuses inputs of a session whose outputs nobody reads.
        assert opened.take().response.sequence == 1
    assert len(daemon._sessions) == 1


def test_sessions_have_ids_of_their_own() -> None:
    daemon = LoopbackDaemon()
    with session(daemon) as one, session(daemon) as other, one, other:
        assert len(daemon._sessions) == 2
        assert 0 not in daemon._sessions


def test_a_result_that_was_not_due_is_an_error() -> None:
    def answers(context: grpc.ServicerContext) -> Iterator[Response]:
        yield Response()
        yield Response(sequence=2)
        until_left(context)

    with (
        session(Misbehaving(answers)) as opened,
        opened,
        pytest.raises(PlannerError, match="result 2 arrived, 1 was due"),
    ):
        opened.take()


def test_a_stream_that_begins_with_a_result_is_an_error() -> None:
    def answers(context: grpc.ServicerContext) -> Iterator[Response]:
        yield Response(sequence=4)
        until_left(context)

    with session(Misbehaving(answers)) as opened, pytest.raises(PlannerError, match="began with result 4"), opened:
        pytest.fail("it opened")


def test_results_that_end_too_early_are_an_error() -> None:
    with session(Misbehaving(lambda context: iter([Response(), Response(sequence=1)]))) as opened, opened:
        assert opened.take().response.sequence == 1
        with pytest.raises(Unavailable, match="the last stage's daemon ended the stream of results"):
            opened.take()


def test_a_refusal_to_open_is_raised_on_entering() -> None:
    def answers(context: grpc.ServicerContext) -> Iterator[Response]:
        context.abort(grpc.StatusCode.FAILED_PRECONDITION, "the deployment is draining")
        yield Response()

    with session(Misbehaving(answers)) as opened, pytest.raises(Conflict, match="the deployment is draining"), opened:
        pytest.fail("it opened")
    assert not any(reader._thread.is_alive() for reader in opened._readers)


def test_a_refusal_of_inputs_is_raised_on_entering() -> None:
    class NoInputs(LoopbackDaemon):
        def SendInputs(
            self, requests: Iterator[stage_daemon_pb2.SendInputsRequest], context: grpc.ServicerContext
        ) -> Iterator[stage_daemon_pb2.SendInputsResponse]:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, "no such input")
            yield from ()

    with session(NoInputs()) as opened, pytest.raises(InvalidArgument, match="no such input"), opened:
        pytest.fail("it opened")


def test_a_daemon_that_says_nothing_is_waited_for_until_the_deadline() -> None:
    def answers(context: grpc.ServicerContext) -> Iterator[Response]:
        until_left(context)
        yield Response()

    with (
        session(Misbehaving(answers), deadline_seconds=0.1) as opened,
        pytest.raises(Unavailable, match=r"no result of microbatch 1 within 0\.1 s"),
        opened,
    ):
        pytest.fail("it opened")


def test_a_deadline_names_the_microbatch_that_is_due() -> None:
    def answers(context: grpc.ServicerContext) -> Iterator[Response]:
        yield Response()
        yield Response(sequence=1)
        until_left(context)

    with session(Misbehaving(answers)) as opened, opened:
        opened.take()
        opened._deadline_seconds = 0.05
        with pytest.raises(Unavailable, match="no result of microbatch 2"):
            opened.take()


def test_nobody_there_is_said_with_the_address() -> None:
    channel = open_channel("127.0.0.1:1", message_bytes=1 << 20)
    unreachable = "a daemon of dep-1 does not answer (127.0.0.1:1 in)"
    nobody = Session(
        generation=0,
        deployment_id="dep-1",
        inputs=channel,
        outputs=channel,
        unreachable=unreachable,
        deadline_seconds=WAIT_SECONDS,
    )
    with pytest.raises(Unavailable) as raised, nobody:
        pytest.fail("it opened")
    assert raised.value.message.startswith(unreachable)
    channel.close()


def test_a_reader_that_is_not_told_of_its_calls_end_holds_nobody_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("planner.client.answers.UNTOLD_SECONDS", 0.05)
    untold = Untold()
    with session(LoopbackDaemon()) as opened:
        monkeypatch.setattr(opened, "_receive_outputs", lambda *_, **__: untold)
        with pytest.raises(Unavailable, match="nobody answers at"), opened:
            pytest.fail("it opened")
    [reader] = opened._readers
    assert reader._thread.is_alive()
    untold.is_over.set()


def test_leaving_ends_both_streams_and_their_threads() -> None:
    daemon = LoopbackDaemon()
    with session(daemon) as opened:
        with opened:
            opened.send([])
            opened.send([])
            # Both streams are there.
            opened.take()
        assert daemon.ended_streams.acquire(timeout=WAIT_SECONDS)
        assert not any(reader._thread.is_alive() for reader in opened._readers)
        assert len(opened._readers) == 2
