"""Threads that ask one pipeline at once: each from a place of its own, a batch of each under way in one run."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

import numpy as np
import pytest

from planner.client.batches import Batch
from planner.client.generation import places
from planner.client.generation.interleaved import ask, place
from planner.client.generation.places import Places
from planner.client.pipeline import Pipeline
from planner.errors import Conflict, MicrobatchFailed, StateLost
from tests.planner.client.loopback_daemon import LoopbackDaemon, loopback_pipeline
from tests.waiting import WAIT_SECONDS, wait_for

pytestmark = pytest.mark.services


def batch(number: int) -> np.ndarray:
    return np.full((1, 3), number, dtype=np.float32)


def asked(pipeline: Pipeline, number: int, epoch: int = 0) -> int:
    return int(ask(pipeline, {"x": batch(number)}, epoch)["y"][0, 0])


def in_a_place(pipeline: Pipeline, here: Places, first: int, times: int) -> tuple[int | None, list[int]]:
    with here.one():
        return place(), [asked(pipeline, first + time, here.epoch) for time in range(times)]


@pytest.fixture
def daemon() -> LoopbackDaemon:
    return LoopbackDaemon()


@pytest.fixture
def pipeline(daemon: LoopbackDaemon) -> Iterator[Pipeline]:
    """Of which one run can be under way."""
    with loopback_pipeline(daemon, written=("keys",)) as opened:
        yield opened


class Threads:
    """One for each call. Whoever waits for ever is left behind."""

    def submit(self, function: Callable[..., Any], *arguments: Any) -> Future[Any]:
        future: Future[Any] = Future()

        def run() -> None:
            try:
                future.set_result(function(*arguments))
            except BaseException as error:
                future.set_exception(error)

        threading.Thread(target=run, daemon=True).start()
        return future


@pytest.fixture
def threads() -> Threads:
    return Threads()


@pytest.mark.parametrize("num_places", [1, 2, 3])
def test_each_gets_its_own_answers(pipeline: Pipeline, threads: Threads, num_places: int) -> None:
    here, times = Places(pipeline, num_places), (3, 0, 7, 1, 20, 12)
    calls = [
        threads.submit(in_a_place, pipeline, here, 100 * index, num_asked) for index, num_asked in enumerate(times)
    ]
    results = [call.result(WAIT_SECONDS) for call in calls]
    assert [answers for _, answers in results] == [
        [100 * index + time for time in range(num_asked)] for index, num_asked in enumerate(times)
    ]
    assert {used for used, _ in results} <= set(range(num_places))
    assert place() is None


@pytest.mark.parametrize("num_places", [3, 5])
def test_a_batch_of_each_caller_is_under_way_in_one_run(
    daemon: LoopbackDaemon, pipeline: Pipeline, threads: Threads, monkeypatch: pytest.MonkeyPatch, num_places: int
) -> None:
    """Each later one too: whoever is answered asks again before the run has nothing left to send."""
    monkeypatch.setattr(places, "_PATIENCE_SECONDS", WAIT_SECONDS)
    here, num_callers, times = Places(pipeline, num_places), 3, 40
    daemon.gate.clear()
    calls = [threads.submit(in_a_place, pipeline, here, 100 * index, times) for index in range(num_callers)]
    # The run that has the first alone may be under way before the others ask.
    wait_for(lambda: len(daemon.received) >= 1 and len(here._waiting) + len(daemon.received) == num_callers)
    daemon.gate.set()
    assert sorted(call.result(WAIT_SECONDS)[1] for call in calls) == [
        [100 * index + time for time in range(times)] for index in range(num_callers)
    ]
    # One that leaves may break a run off.
    assert len(daemon.generations) <= 2 + num_callers
    wait_for(lambda: not here._is_running)
    assert not here._going_on


def test_whoever_is_slow_to_ask_again_is_waited_for_once(
    pipeline: Pipeline, threads: Threads, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, answered, others_done = Places(pipeline, 2), threading.Event(), threading.Event()

    def slow() -> list[int]:
        with here.one():
            first = asked(pipeline, 1)
            answered.set()
            assert others_done.wait(WAIT_SECONDS)
            return [first, asked(pipeline, 2)]

    waiting = threads.submit(slow)
    assert answered.wait(WAIT_SECONDS)
    with here.one():
        assert asked(pipeline, 10) == 10
        monkeypatch.setattr(places, "_PATIENCE_SECONDS", 10 * WAIT_SECONDS)
        assert [asked(pipeline, 20 + time) for time in range(10)] == list(range(20, 30))
    monkeypatch.undo()
    others_done.set()
    assert waiting.result(WAIT_SECONDS) == [1, 2]


def test_a_batch_that_fails_is_told_to_who_asked(daemon: LoopbackDaemon, pipeline: Pipeline, threads: Threads) -> None:
    daemon.failing = {1}
    here = Places(pipeline, 2)
    with here.one():
        with pytest.raises(MicrobatchFailed, match="index out of range"):
            threads.submit(in_a_place, pipeline, here, 5, 1).result(WAIT_SECONDS)
        daemon.failing = set()
        assert asked(pipeline, 2) == 2
    assert here._free.qsize() == 2


def test_what_is_lost_is_lost_for_all_who_wrote_before(
    pipeline: Pipeline, threads: Threads, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, barrier = Places(pipeline, 3), threading.Barrier(3)
    lost = StateLost("gone", deployment_id="dep-1")
    monkeypatch.setattr(pipeline, "run", lambda batches, **_: raising_when_all_ask(batches))

    def raising_when_all_ask(batches: Iterator[Batch]) -> Iterator[Any]:
        next(batches)
        wait_for(lambda: len(here._waiting) == 2)
        raise lost
        yield

    def write() -> int:
        with here.one():
            barrier.wait(WAIT_SECONDS)
            with pytest.raises(StateLost, match="gone"):
                asked(pipeline, 1, epoch=0)
            barrier.wait(WAIT_SECONDS)
            # Whoever was busy elsewhere meanwhile takes it to be there still.
            with pytest.raises(StateLost, match="written before is lost"):
                asked(pipeline, 2, epoch=0)
            here.lose(0)
            return here.epoch

    calls = [threads.submit(write) for _ in range(3)]
    assert [call.result(WAIT_SECONDS) for call in calls] == [1, 1, 1]
    monkeypatch.undo()
    assert in_a_place(pipeline, here, 7, 2)[1] == [7, 8]


def test_a_pipeline_that_is_closed_says_so_to_all(daemon: LoopbackDaemon, pipeline: Pipeline, threads: Threads) -> None:
    here = Places(pipeline, 2)
    daemon.gate.clear()
    calls = [threads.submit(in_a_place, pipeline, here, 10 * index, 3) for index in range(2)]
    wait_for(lambda: daemon.received and len(daemon.received) + len(here._waiting) == 2)
    pipeline.close()
    for call in calls:
        with pytest.raises(Exception, match=r"closed|end|cancel"):
            call.result(WAIT_SECONDS)
    with pytest.raises(Conflict, match="closed"):
        in_a_place(pipeline, here, 1, 1)


def test_all_places_are_had_once_nobody_has_one(pipeline: Pipeline, threads: Threads) -> None:
    here, leaves = Places(pipeline, 2), threading.Event()

    def stay() -> int | None:
        with here.one():
            assert leaves.wait(WAIT_SECONDS)
            return place()

    def alone() -> int:
        with here.all():
            assert here._free.empty()
            return asked(pipeline, 3)

    staying = threads.submit(stay)
    wait_for(lambda: here._free.qsize() == 1)
    taking = [threads.submit(alone) for _ in range(2)]
    wait_for(lambda: here._free.qsize() == 0)
    assert not any(call.done() for call in taking)
    leaves.set()
    assert (staying.result(WAIT_SECONDS), [call.result(WAIT_SECONDS) for call in taking]) == (0, [3, 3])
    assert here._free.qsize() == 2


def test_who_leaves_before_the_answer_is_not_waited_for(pipeline: Pipeline) -> None:
    here = Places(pipeline, 2)
    with here.one():
        caller = next(iter(here.callers))
    with here._changed:
        here._waiting.append(late := places._Asked(caller, {"x": batch(4)}))
    assert in_a_place(pipeline, here, 5, 2)[1] == [5, 6]
    assert late.answer.get(timeout=WAIT_SECONDS)["y"][0, 0] == 4
    assert not here._going_on
