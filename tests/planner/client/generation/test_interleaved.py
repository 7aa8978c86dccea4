"""Calls that ask one pipeline in turn: a batch of each is under way, and what ends one of them ends all."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

from planner.client.generation.interleaved import ask, place, run_interleaved
from planner.client.pipeline import Pipeline
from planner.errors import MicrobatchFailed
from tests.planner.client.loopback_daemon import LoopbackDaemon, loopback_pipeline, opened_sessions
from tests.waiting import WAIT_SECONDS, wait_for

pytestmark = pytest.mark.services


def batch(number: int) -> np.ndarray:
    return np.full((1, 3), number, dtype=np.float32)


def asking(pipeline: Pipeline, first: int, times: int, places: set[int | None]) -> Callable[[], list[int]]:
    def call() -> list[int]:
        places.add(place())
        return [int(ask(pipeline, {"x": batch(first + time)})["y"][0, 0]) for time in range(times)]

    return call


def no_calls_left() -> bool:
    return not any(thread.name.startswith("call-") for thread in threading.enumerate())


def test_each_gets_its_own_answers_and_has_a_place_of_its_own() -> None:
    daemon, places = LoopbackDaemon(), set[int | None]()
    with loopback_pipeline(daemon, written=("keys",)) as pipeline:
        calls = [asking(pipeline, 10 * index, times, places) for index, times in enumerate((3, 0, 5, 1, 2))]
        results = run_interleaved(pipeline, calls, 2)
        assert results == [[0, 1, 2], [], [20, 21, 22, 23, 24], [30], [40, 41]]
        assert places == {0, 1}
        assert (place(), int(ask(pipeline, {"x": batch(9)})["y"][0, 0])) == (None, 9)
        assert run_interleaved(pipeline, [], 2) == []
    wait_for(no_calls_left)


def test_a_batch_of_each_is_under_way() -> None:
    daemon = LoopbackDaemon()
    daemon.gate.clear()
    with loopback_pipeline(daemon) as pipeline:
        calls = [asking(pipeline, 10 * index, 2, set()) for index in range(5)]
        results: list[Any] = []
        running = threading.Thread(target=lambda: results.extend(run_interleaved(pipeline, calls, 3)))
        running.start()
        wait_for(lambda: len(daemon.received) == 3, "a batch of each place to arrive")
        daemon.gate.set()
        running.join(timeout=120)
    assert results == [[10 * index, 10 * index + 1] for index in range(5)]


@pytest.mark.parametrize("at", [0, 2])
def test_what_one_raises_ends_the_others(at: int) -> None:
    def raising() -> None:
        for number in range(at):
            ask(pipeline, {"x": batch(number)})
        raise KeyError("mine")

    with loopback_pipeline(LoopbackDaemon(), written=("keys",)) as pipeline:
        with pytest.raises(KeyError, match="mine"):
            run_interleaved(pipeline, [asking(pipeline, 0, 50, set()), raising], 2)
        # No run is left in the middle, though the error is held.
        assert run_interleaved(pipeline, [asking(pipeline, 7, 1, set())], 2) == [[7]]
    wait_for(no_calls_left)


def test_a_batch_that_fails_is_told_to_who_asked() -> None:
    daemon = LoopbackDaemon()
    daemon.failing = {2}

    def forgiving() -> str:
        with pytest.raises(MicrobatchFailed, match="index out of range"):
            ask(pipeline, {"x": batch(1)})
        return f"went on with {int(ask(pipeline, {'x': batch(5)})['y'][0, 0])}"

    with loopback_pipeline(daemon) as pipeline:
        results = run_interleaved(pipeline, [asking(pipeline, 0, 3, set()), forgiving], 2)
    assert results == [[0, 1, 2], "went on with 5"]


@pytest.mark.parametrize("at_once", [False, True])
def test_the_order_of_calls_is_that_of_answers_whatever_the_timing(
    monkeypatch: pytest.MonkeyPatch, at_once: bool
) -> None:
    """A call that ends is followed in its turn, though others are asking by then."""
    order, sessions = list[int](), opened_sessions(monkeypatch)

    def call(index: int, times: int) -> None:
        for _ in range(times):
            ask(pipeline, {"x": batch(index)})
            order.append(index)
            if at_once and len(order) == 1:
                wait_for(sessions[0].has_arrived, "the second answer to be there too")

    with loopback_pipeline(LoopbackDaemon()) as pipeline:
        run_interleaved(pipeline, [partial(call, index, times) for index, times in enumerate((3, 1, 3, 2))], 3)
    assert order == [0, 1, 2, 0, 3, 2, 0, 3, 2]


def test_an_interrupt_ends_calls_wherever_they_are() -> None:
    """The one that goes on too, which whoever is interrupted waits for."""
    heard = threading.Event()

    def interrupts(*_: object) -> None:
        heard.set()
        raise KeyboardInterrupt

    def interrupted() -> None:
        ask(pipeline, {"x": batch(0)})
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)
        heard.wait(WAIT_SECONDS)
        ask(pipeline, {"x": batch(1)})

    with loopback_pipeline(LoopbackDaemon()) as pipeline:
        before = signal.signal(signal.SIGUSR1, interrupts)
        try:
            with pytest.raises(KeyboardInterrupt):
                run_interleaved(pipeline, [asking(pipeline, 0, 50, set()), interrupted], 2)
        finally:
            signal.signal(signal.SIGUSR1, before)
    wait_for(no_calls_left)
