"""How many microbatches a run has in flight: more where they are small and soon answered."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from itertools import islice

import numpy as np
import pytest

from planner.client import window
from planner.client.session import Arrival
from planner.client.tensors import RawTensor
from planner.client.window import Window
from planner.graph.ir import Dtype
from protos.v1 import stage_daemon_pb2
from tests.planner.client.loopback_daemon import LoopbackDaemon, loopback_pipeline
from tests.waiting import wait_for

USUAL, SMALL = 8, 4096


class Clock:
    """In the place of the module `time`."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(window, "time", clock)
    return clock


def sizes(of: Window, clock: Clock, *, seconds_each: float, sent_bytes: int, given_bytes: int) -> Iterator[int]:
    """After each result."""
    sent = [RawTensor(dtype=Dtype.UINT8, dims=(sent_bytes,), data=bytes(sent_bytes))]
    arrival = Arrival(stage_daemon_pb2.ReceiveOutputsResponse(), payload=memoryview(bytes(given_bytes)))
    while True:
        clock.now += seconds_each
        of.answered(arrival, sent)
        yield of.size


def last_size(
    of: Window, clock: Clock, seconds_each: float, sent_bytes: int = SMALL, given_bytes: int = SMALL, results: int = 500
) -> int:
    along = sizes(of, clock, seconds_each=seconds_each, sent_bytes=sent_bytes, given_bytes=given_bytes)
    return list(islice(along, results))[-1]


@pytest.mark.parametrize(
    ("seconds_each", "size"), [(50e-6, 64), (100e-6, 40), (250e-6, 16), (1e-3, USUAL), (1.0, USUAL)]
)
def test_as_many_as_are_answered_within_four_milliseconds(clock: Clock, seconds_each: float, size: int) -> None:
    assert last_size(Window(USUAL), clock, seconds_each) == pytest.approx(size, abs=1)


def test_it_doubles_once_as_many_are_answered_as_it_has(clock: Clock) -> None:
    along = sizes(Window(USUAL), clock, seconds_each=1e-6, sent_bytes=SMALL, given_bytes=SMALL)
    assert list(islice(along, 57)) == [8] * 7 + [16] * 16 + [32] * 32 + [64] * 2


def test_what_becomes_slow_has_its_usual_window_again(clock: Clock) -> None:
    of = Window(USUAL)
    assert last_size(of, clock, 1e-6) == 64
    assert last_size(of, clock, 1e-2, results=64) == USUAL
    assert last_size(of, clock, 1e-6) == 64


@pytest.mark.parametrize(("sent_bytes", "given_bytes"), [(2**16 - SMALL, SMALL), (SMALL, 2**16 - SMALL)])
def test_more_than_the_usual_ones_are_a_mebibyte_there_and_back(
    clock: Clock, sent_bytes: int, given_bytes: int
) -> None:
    assert last_size(Window(USUAL), clock, 1e-6, sent_bytes, given_bytes) == 16


def test_one_that_keeps_many_copies_busy_is_never_smaller(clock: Clock) -> None:
    assert last_size(Window(100), clock, 1e-6) == 100
    assert last_size(Window(100), clock, 1.0, sent_bytes=2**20) == 100


def test_nothing_sent_and_nothing_given_has_a_window_too(clock: Clock) -> None:
    assert last_size(Window(USUAL), clock, 0.0, 0, 0) == 64


@pytest.mark.parametrize(("asked", "most"), [(None, 64), (3, 3)])
def test_a_run_has_so_many_in_flight_unless_it_is_told(clock: Clock, asked: int | None, most: int) -> None:
    daemon, results = LoopbackDaemon(), list[object]()

    def batches() -> Iterator[np.ndarray]:
        for number in range(400):
            if number == 300:
                daemon.gate.clear()
            yield np.full((2, 3), number, dtype=np.float32)

    def read() -> None:
        for result in pipeline.run(batches(), window=asked):
            results.append(result)

    with loopback_pipeline(daemon) as pipeline:
        reader = threading.Thread(target=read)
        reader.start()
        try:
            wait_for(lambda: len(daemon.received) >= 300 and len(daemon.received) - len(results) == most)
        finally:
            daemon.gate.set()
            reader.join(timeout=120)
    assert len(results) == 400
