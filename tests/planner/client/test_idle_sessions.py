"""Sessions that one run leaves to the next: which are gone on with, and when they end."""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Generator, Iterator
from concurrent.futures import ThreadPoolExecutor

import grpc
import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from planner.client import idle_sessions
from planner.client.idle_sessions import IdleSessions
from planner.client.pipeline import Pipeline
from planner.errors import MicrobatchFailed
from protos.v1 import stage_daemon_pb2
from stage_daemon.runtime.egress import Result
from stage_daemon.runtime.ingress import Ingress, InputFormat
from stage_daemon.transport.declared import DeclaredValue, Symbol, SymbolReference, ValueKind
from stage_daemon.transport.parcel import MicrobatchFailure
from stage_daemon.worker.door import Door
from tests.planner.client.loopback_daemon import LoopbackDaemon, loopback_pipeline
from tests.planner.client.test_lifetime import told_in_a_fork
from tests.waiting import WAIT_SECONDS, wait_for

pytestmark = pytest.mark.services

X = DeclaredValue(value_id=1, name="x", kind=ValueKind.TENSOR, dtype=torch.float32, dims=(SymbolReference(1), 3))
FORMAT = InputFormat(values=(X,), symbols={1: Symbol(id=1, name="batch", lower=1, upper=8)})


class Echoing(LoopbackDaemon):
    """Its worker gives each microbatch back at its door, and fails those that are negative."""

    def __init__(self, may_idle: bool = True) -> None:
        super().__init__()
        self.may_idle = may_idle
        self.contexts: list[grpc.ServicerContext] = []
        self.may_give = threading.Event()
        self.may_give.set()
        self._ingress = Ingress(lambda submission: None)
        self.door = Door(self._ingress, FORMAT, lambda session_id: None)
        threading.Thread(target=self._give_back, daemon=True).start()

    def ReceiveOutputs(
        self, request: stage_daemon_pb2.ReceiveOutputsRequest, context: grpc.ServicerContext
    ) -> Iterator[stage_daemon_pb2.ReceiveOutputsResponse]:
        self.contexts.append(context)
        has_left = threading.Event()
        context.add_callback(has_left.set)
        yield stage_daemon_pb2.ReceiveOutputsResponse(door=self.door.address(), may_idle=True)
        has_left.wait(WAIT_SECONDS)

    def SendInputs(
        self, requests: Iterator[stage_daemon_pb2.SendInputsRequest], context: grpc.ServicerContext
    ) -> Iterator[stage_daemon_pb2.SendInputsResponse]:
        context.add_callback(self.ended_streams.release)
        next(requests)
        yield stage_daemon_pb2.SendInputsResponse(door=self.door.address(), may_idle=self.may_idle)
        for request in requests:
            raise AssertionError(f"{request} came by the stream")

    @property
    def num_opened(self) -> int:
        return len(self.contexts)

    def _give_back(self) -> None:
        while (submission := self._ingress.take()) is not None:
            [x] = submission.read()
            self.may_give.wait(WAIT_SECONDS)
            assert isinstance(x, torch.Tensor)
            failure = MicrobatchFailure(reason="STAGE_FAILED", message="below 0", stage=0) if x[0, 0] < 0 else None
            self.door.give(
                Result(
                    session_id=submission.session_id,
                    sequence=submission.sequence,
                    items=() if failure else (x,),
                    failure=failure,
                )
            )


def batch(value: float, rows: int = 2) -> NDArray[np.float32]:
    return np.full((rows, 3), value, np.float32)


def assert_gives_back(pipeline: Pipeline, *values: float, rows: int = 2) -> None:
    results = [result["y"] for result in pipeline.run([batch(value, rows) for value in values])]
    np.testing.assert_array_equal(results, [batch(value, rows) for value in values])


def idle(pipeline: Pipeline) -> IdleSessions:
    return pipeline._routes[-1].idle


def test_a_run_goes_on_with_the_session_of_the_one_before() -> None:
    daemon = Echoing()
    with loopback_pipeline(daemon) as pipeline:
        for values in ((1, 2, 3), (4,), (5, 6)):
            assert_gives_back(pipeline, *values)
        assert daemon.num_opened == 1
    assert daemon.ended_streams.acquire(timeout=WAIT_SECONDS)


def test_microbatches_are_counted_by_run() -> None:
    daemon = Echoing()
    with loopback_pipeline(daemon) as pipeline:
        assert_gives_back(pipeline, 1, 2, 3)
        with pytest.raises(MicrobatchFailed, match="microbatch 2 failed"):
            list(pipeline.run([batch(1), batch(-1)]))
        # That run's caller had taken all, but not to the end.
        assert_gives_back(pipeline, 1)
        session = idle(pipeline).take("")
        assert session is not None
        session._deadline_seconds = 0.0
        assert session._overdue().message.startswith("no result of microbatch 1 ")
        session.close(is_over=True)


def test_runs_at_the_same_time_have_sessions_of_their_own() -> None:
    daemon = Echoing()
    both_run = threading.Barrier(2)

    def batches(value: float) -> Iterator[NDArray[np.float32]]:
        yield batch(value)
        both_run.wait(WAIT_SECONDS)
        yield batch(value + 1)

    with loopback_pipeline(daemon) as pipeline, ThreadPoolExecutor(2) as threads:
        for _ in range(3):
            runs = [threads.submit(lambda value=value: list(pipeline.run(batches(value)))) for value in (1, 5)]
            for value, run in zip((1, 5), runs, strict=True):
                np.testing.assert_array_equal(
                    [result["y"] for result in run.result()], [batch(value), batch(value + 1)]
                )
    assert daemon.num_opened == 2


def test_a_run_that_is_broken_off_leaves_no_session() -> None:
    daemon = Echoing()
    with loopback_pipeline(daemon) as pipeline:
        run = pipeline.run_leaves([[batch(value)] for value in (1, 2, 3)], window=2)
        next(run)
        run.close()  # type: ignore[attr-defined]
        assert_gives_back(pipeline, 4)
    assert daemon.num_opened == 2


@pytest.mark.parametrize("who", ["daemon", "worker"])
def test_a_session_that_was_ended_meanwhile_is_not_gone_on_with(who: str) -> None:
    daemon = Echoing()
    with loopback_pipeline(daemon) as pipeline:
        assert_gives_back(pipeline, 1)
        [(_, session)] = idle(pipeline)._idle
        if who == "daemon":
            daemon.contexts[0].cancel()
        else:
            for outlet in tuple(daemon.door._outlets.values()):
                outlet.end()
        wait_for(lambda: not session.can_idle(), "the client to hear of the end")
        assert_gives_back(pipeline, 2)
    assert daemon.num_opened == 2


def test_a_session_whose_end_was_told_before_its_last_result_is_not_gone_on_with() -> None:
    daemon = Echoing()
    with loopback_pipeline(daemon) as pipeline, ThreadPoolExecutor(1) as threads:
        assert_gives_back(pipeline, 1)
        [(_, session)] = idle(pipeline)._idle
        assert session._output is not None
        of_both = (session._output.fileno(), session._arrived.fileno())
        session._pollers.clear()
        daemon.may_give.clear()
        run = threads.submit(assert_gives_back, pipeline, 2)
        wait_for(lambda: of_both in session._pollers, "the run to wait for its result")
        daemon.contexts[0].cancel()
        wait_for(lambda: not session._arrivals.empty(), "the client to hear of the end")
        wait_for(lambda: not select.select([session._arrived], [], [], 0)[0], "the run to have read that it came")
        daemon.may_give.set()
        run.result()
        assert not idle(pipeline)._idle
        assert_gives_back(pipeline, 3)
    assert daemon.num_opened == 2


def test_a_session_lasts_no_longer_than_its_ticket() -> None:
    daemon, tickets = Echoing(), iter(["one", "one", "two"])
    with loopback_pipeline(daemon) as pipeline:
        pipeline._ticket = lambda: next(tickets)
        for num_opened in (1, 1, 2):
            assert_gives_back(pipeline, 1)
            assert daemon.num_opened == num_opened


def test_where_a_daemon_allows_it_not_each_run_opens_a_session() -> None:
    daemon = Echoing(may_idle=False)
    with loopback_pipeline(daemon) as pipeline:
        for num_opened in (1, 2):
            assert_gives_back(pipeline, 1)
            assert daemon.num_opened == num_opened
            assert not idle(pipeline)._idle


def test_what_is_idle_for_too_long_is_closed_and_leaves_its_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(idle_sessions, "IDLE_SECONDS", 0.01)
    daemon = Echoing()
    with loopback_pipeline(daemon) as pipeline:
        for num_opened in (1, 2):
            assert_gives_back(pipeline, 1)
            assert daemon.ended_streams.acquire(timeout=WAIT_SECONDS)
            wait_for(lambda: not daemon.door._outlets, "the worker to see it go")
            assert daemon.num_opened == num_opened
            wait_for(lambda: len(pipeline._routes[0].kept._kept) == 1, "the session to have left its memory")


def test_so_many_are_idle_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(idle_sessions, "_MOST_IDLE", 2)
    daemon = Echoing()
    with loopback_pipeline(daemon) as pipeline:
        runs = [pipeline.run_leaves([[batch(1)], [batch(2)]], window=1) for _ in range(3)]
        for run in runs:
            next(run)
        for run in runs:
            assert len(list(run)) == 1
        assert len(idle(pipeline)._idle) == 2
        assert daemon.ended_streams.acquire(timeout=WAIT_SECONDS)


def test_a_session_that_ends_after_its_pipeline_is_closed() -> None:
    daemon = Echoing()
    with loopback_pipeline(daemon) as pipeline:
        assert_gives_back(pipeline, 1)
        session = idle(pipeline).take("")
        assert session is not None
        idle(pipeline).close()
        idle(pipeline).give_back(session)
        assert not idle(pipeline)._idle
        assert not any(reader._thread.is_alive() for reader in session._readers)


def test_a_forked_process_is_told_that_a_pipeline_is_its_parents_and_ends_nothing_of_it() -> None:
    daemon = Echoing()
    with loopback_pipeline(daemon) as pipeline:
        assert_gives_back(pipeline, 1)
        run = pipeline.run(map(batch, range(20)), window=4)
        assert isinstance(run, Generator)
        next(run)
        other = pipeline.run([batch(1)])
        assert_gives_back(pipeline, 2)
        assert len(idle(pipeline)._idle) == 1

        def leave() -> None:
            run.close()
            idle_sessions._close_all(idle(pipeline)._idle)
            pipeline.close()
            next(other)

        opened = f"this pipeline of dep-1 was opened by process {os.getpid()}"
        assert told_in_a_fork(leave).startswith(f"Conflict: {opened}, from which this one was forked")
        for number, result in enumerate(run, 1):
            np.testing.assert_array_equal(result["y"], batch(number))
        assert_gives_back(pipeline, 3)
    assert daemon.num_opened == 2


def test_a_session_ends_although_a_fork_has_its_connections() -> None:
    daemon = Echoing()
    with loopback_pipeline(daemon) as pipeline:
        assert_gives_back(pipeline, 1)
        [(_, session)] = idle(pipeline)._idle
        assert session._input is not None
        assert session._output is not None
        of_fork = [os.dup(passage.fileno()) for passage in (session._input, session._output)]
        pipeline.close()
        wait_for(lambda: not (daemon.door._outlets or daemon._ingress._sources), "the worker to see the session go")
        for number in of_fork:
            os.close(number)
