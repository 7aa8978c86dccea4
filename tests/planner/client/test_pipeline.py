"""Sessions: order, window, failures and cleaning up, against a daemon that gives back what it gets."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator

import numpy as np
import pytest

from access.ring import create_ring
from planner.client.batches import Batch
from planner.client.door import SessionMemory
from planner.client.messages import deployment_from_proto
from planner.client.pipeline import MOST_FRUITLESS
from planner.client.records import Deployment
from planner.errors import (
    BuffersInUse,
    Conflict,
    DeploymentFailed,
    InvalidArgument,
    MicrobatchFailed,
    PlannerWarning,
    StateLost,
    Unavailable,
)
from protos.v1 import planner_pb2
from tests.planner.client.loopback_daemon import LoopbackDaemon, loopback_pipeline, opened_sessions, serving
from tests.waiting import wait_for

pytestmark = pytest.mark.services


def batch(number: int, rows: int = 2) -> np.ndarray:
    return np.full((rows, 3), number, dtype=np.float32)


def test_results_come_in_order_in_the_modules_own_structure() -> None:
    with loopback_pipeline(LoopbackDaemon()) as pipeline:
        results = list(pipeline.run((batch(number, rows=1 + number % 8) for number in range(50)), window=5))
    for number, result in enumerate(results):
        np.testing.assert_array_equal(result["y"], batch(number, rows=1 + number % 8))
    assert len(results) == 50


def test_one_batch_is_a_call() -> None:
    with loopback_pipeline(LoopbackDaemon()) as pipeline:
        np.testing.assert_array_equal(pipeline(batch(3))["y"], batch(3))
        np.testing.assert_array_equal(next(iter(pipeline.run([(batch(4),)])))["y"], batch(4))
        np.testing.assert_array_equal(next(iter(pipeline.run([Batch((batch(5),))])))["y"], batch(5))


def test_a_closed_pipeline_says_so() -> None:
    with loopback_pipeline(LoopbackDaemon()) as pipeline:
        pipeline.close()
        with pytest.raises(Conflict, match="this pipeline of dep-1 is closed; open another"):
            pipeline(batch(3))


def test_autocast_around_a_pipeline_is_told_of_once() -> None:
    import torch

    given = torch.zeros(2, 3)
    with loopback_pipeline(LoopbackDaemon()) as pipeline, torch.autocast("cpu", torch.bfloat16):
        with pytest.warns(PlannerWarning, match="autocast around a pipeline does not reach its stages") as told:
            assert pipeline(given)["y"].dtype is torch.float32
        assert told[0].filename == __file__
        list(pipeline.run([(given,)]))


def test_no_more_than_the_window_is_in_flight() -> None:
    daemon = LoopbackDaemon()
    daemon.gate.clear()
    numbers: list[int] = []

    def batches() -> Iterator[np.ndarray]:
        for number in range(1, 11):
            numbers.append(number)
            yield batch(number)

    with loopback_pipeline(daemon) as pipeline:
        results: list[object] = []
        reader = threading.Thread(target=lambda: results.extend(pipeline.run(batches(), window=4)))
        reader.start()
        wait_for(lambda: len(daemon.received) >= 4)
        time.sleep(0.2)
        assert daemon.received == [1, 2, 3, 4]
        assert numbers == [1, 2, 3, 4]
        daemon.gate.set()
        reader.join(timeout=120)
        assert not reader.is_alive()
    assert len(results) == 10


@pytest.mark.parametrize(("num_copies", "window"), [(1, 8), (3, 8), (20, 42)])
def test_a_window_of_its_own_keeps_all_copies_busy(num_copies: int, window: int) -> None:
    daemon = LoopbackDaemon()
    daemon.gate.clear()
    with loopback_pipeline(daemon, num_copies=num_copies) as pipeline:
        assert pipeline.default_window == window
        reader = threading.Thread(target=lambda: list(pipeline.run(batch(number) for number in range(60))))
        reader.start()
        wait_for(lambda: len(daemon.received) == window)
        time.sleep(0.1)
        assert len(daemon.received) == window
        daemon.gate.set()
        reader.join(timeout=120)
    assert len(daemon.received) == 60


def test_results_are_given_before_the_window_is_full(monkeypatch: pytest.MonkeyPatch) -> None:
    daemon = LoopbackDaemon()
    num_results: list[int] = []
    sessions = opened_sessions(monkeypatch)

    def batches() -> Iterator[np.ndarray]:
        yield batch(1)
        wait_for(lambda: sessions[0].has_arrived(), "the first result to arrive")
        yield batch(2)
        num_results.append(len(results))
        yield batch(3)

    with loopback_pipeline(daemon) as pipeline:
        results: list[object] = []
        for result in pipeline.run(batches(), window=8):
            results.append(result)
    assert len(results) == 3
    assert num_results[0] >= 1


def test_a_failed_microbatch_names_its_stage() -> None:
    daemon = LoopbackDaemon()
    daemon.failing = {2}
    with loopback_pipeline(daemon) as pipeline:
        results = pipeline.run([batch(1), batch(2), batch(3)])
        next(results)
        with pytest.raises(
            MicrobatchFailed, match="microbatch 2 failed in stage 1 on device b: index out of range"
        ) as it:
            next(results)
        assert it.value.metadata["stage"] == "1"
        assert it.value.metadata["reason"] == "STAGE_FAILED"
        # The deployment goes on.
        np.testing.assert_array_equal(pipeline(batch(4))["y"], batch(4))


def test_failures_can_stand_in_place_of_outputs() -> None:
    daemon = LoopbackDaemon()
    daemon.failing = {1, 3}
    with loopback_pipeline(daemon) as pipeline:
        results = list(pipeline.run([batch(n) for n in range(4)], raise_failures=False))
    assert [isinstance(result, MicrobatchFailed) for result in results] == [True, False, True, False]


def test_leaving_early_ends_the_session() -> None:
    daemon = LoopbackDaemon()
    with loopback_pipeline(daemon) as pipeline:
        threads = threading.active_count()
        results = pipeline.run((batch(n) for n in range(1000)), window=4)
        next(results)
        results.close()
        assert daemon.ended_streams.acquire(timeout=120)
        wait_for(lambda: threading.active_count() <= threads + 8)
        assert len(daemon.received) < 1000


def test_a_batch_that_does_not_fit_is_refused_before_it_is_sent() -> None:
    daemon = LoopbackDaemon()
    with loopback_pipeline(daemon) as pipeline:
        with pytest.raises(InvalidArgument, match=r"input 'x'.*float64 found, float32 needed"):
            pipeline(np.zeros((2, 3)))
        with pytest.raises(InvalidArgument, match=r"dimension 0 \(batch\) is 9, needs at least 1 and at most 8"):
            pipeline(batch(1, rows=9))
        with pytest.raises(InvalidArgument, match="dimension 1 is 4, needs 3"):
            pipeline(np.zeros((2, 4), dtype=np.float32))
        with pytest.raises(InvalidArgument, match="2 dimensions needed"):
            pipeline(np.zeros(3, dtype=np.float32))
        with pytest.raises(InvalidArgument, match="window is 0"):
            list(pipeline.run([batch(1)], window=0))
    assert daemon.received == []


def test_a_worker_that_dies_ends_the_run() -> None:
    daemon = LoopbackDaemon()
    daemon.ends_at = 3
    with loopback_pipeline(daemon) as pipeline:
        results = pipeline.run([batch(n) for n in range(1, 6)], window=1)
        assert len([next(results), next(results)]) == 2
        with pytest.raises(Unavailable, match="the worker died"):
            next(results)


def test_what_the_planner_knows_of_a_failure_is_raised() -> None:
    daemon = LoopbackDaemon()
    daemon.ends_at = 1
    reason = DeploymentFailed("deployment dep-1 failed: stage 1 on b: the worker was killed")
    with loopback_pipeline(daemon, why_failed=lambda: reason) as pipeline, pytest.raises(DeploymentFailed) as raised:
        pipeline(batch(1))
    assert raised.value is reason


def test_a_result_that_does_not_come_is_an_error_at_the_deadline() -> None:
    daemon = LoopbackDaemon()
    daemon.gate.clear()
    with (
        loopback_pipeline(daemon, deadline_seconds=0.3) as pipeline,
        pytest.raises(Unavailable, match=r"no result of microbatch 1 within 0.3 s"),
    ):
        pipeline(batch(1))


def test_torch_tensors_in_torch_tensors_out() -> None:
    import torch

    with loopback_pipeline(LoopbackDaemon()) as pipeline:
        x = torch.randn(2, 3)
        output = pipeline(x)["y"]
        assert torch.equal(output, x)
        assert isinstance(pipeline(batch(1))["y"], np.ndarray)


def generation_at(address: str, generation: int) -> Deployment:
    message = planner_pb2.Deployment(
        id="dep-1",
        state=planner_pb2.DEPLOYMENT_STATE_READY,
        generation=generation,
        input_address=address,
        output_address=address,
    )
    return deployment_from_proto(message)


def test_what_was_not_answered_is_sent_to_the_next_generation_and_each_is_answered_once() -> None:
    """The caller writes each batch into the same memory."""
    first, second, third = LoopbackDaemon(), LoopbackDaemon(), LoopbackDaemon()
    first.ends_at, second.ends_at = 6, 3
    memory = np.empty((2, 3), dtype=np.float32)

    def batches() -> Iterator[np.ndarray]:
        for number in range(20):
            memory[:] = number
            yield memory

    with serving(second) as second_address, serving(third) as third_address:
        later = {1: generation_at(second_address, 2), 2: generation_at(third_address, 3)}
        with loopback_pipeline(first, find_next=lambda _, generation: later[generation]) as pipeline:
            results = [result["y"] for result in pipeline.run(batches(), window=4)]
            again = pipeline(batch(7))["y"]
    np.testing.assert_array_equal(results, [batch(number) for number in range(20)])
    np.testing.assert_array_equal(again, batch(7))
    assert [daemon.generations for daemon in (first, second, third)] == [[1], [2], [3, 3]]


def test_memory_shared_with_an_earlier_generation_is_not_kept() -> None:
    first, second = LoopbackDaemon(), LoopbackDaemon()
    first.ends_at = 2
    ring, descriptor = create_ring(1, 1, keeps_descriptor=True)
    os.close(descriptor)
    with (
        serving(second) as address,
        loopback_pipeline(first, find_next=lambda *_: generation_at(address, 2)) as pipeline,
    ):
        kept = pipeline._routes[0].kept
        # The run itself takes one.
        for _ in range(2):
            kept.give_back(SessionMemory(ring))
        list(pipeline.run([batch(1), batch(2), batch(3)]))
        assert kept.take() == SessionMemory()


def test_failures_count_on_in_the_next_generation() -> None:
    first, second = LoopbackDaemon(), LoopbackDaemon()
    first.ends_at, second.failing = 3, {2}
    with (
        serving(second) as address,
        loopback_pipeline(first, find_next=lambda *_: generation_at(address, 2)) as pipeline,
    ):
        results = list(pipeline.run([batch(1), batch(2), batch(3), batch(4)], raise_failures=False))
    assert isinstance(results[3], MicrobatchFailed)
    assert results[3].metadata["sequence"] == "4"


def test_a_microbatch_that_breaks_every_generation_is_given_up() -> None:
    daemon = LoopbackDaemon()
    daemon.ends_at = 1
    generations: list[int] = []

    def find_next(_: str, generation: int) -> Deployment:
        generations.append(generation)
        return generation_at(address, generation + 1)

    with (
        serving(daemon) as address,
        loopback_pipeline(daemon, find_next=find_next) as pipeline,
        pytest.raises(Unavailable),
    ):
        pipeline(batch(1))
    assert generations == list(range(1, MOST_FRUITLESS + 1))


WRITTEN = ("keys.0", "values.0", "keys.1")


def test_a_recovery_that_puts_written_buffers_back_is_told_once() -> None:
    """The second generation ends before it has answered, and so before anything is lost again."""
    first, second, third = LoopbackDaemon(), LoopbackDaemon(), LoopbackDaemon()
    first.ends_at, second.ends_at = 3, 1
    with serving(second) as second_address, serving(third) as third_address:
        later = {1: generation_at(second_address, 2), 2: generation_at(third_address, 3)}
        with loopback_pipeline(first, find_next=lambda _, generation: later[generation], written=WRITTEN) as pipeline:
            answers = pipeline.run(batch(number) for number in range(5))
            np.testing.assert_array_equal([next(answers)["y"], next(answers)["y"]], [batch(0), batch(1)])
            with pytest.raises(
                StateLost, match=r"dep-1 goes on as generation 2, .* wrote to keys\.0, values\.0 and 1 more is lost"
            ):
                next(answers)
            assert second.received == []
            np.testing.assert_array_equal(pipeline(batch(0))["y"], batch(0))
    assert (second.received, third.received) == ([1], [1])


def test_a_sequence_of_which_nothing_was_answered_begins_anew_by_itself() -> None:
    first, second = LoopbackDaemon(), LoopbackDaemon()
    first.ends_at = 1
    with (
        serving(second) as address,
        loopback_pipeline(first, find_next=lambda *_: generation_at(address, 2), written=WRITTEN) as pipeline,
    ):
        results = [result["y"] for result in pipeline.run([batch(1), batch(2)])]
    np.testing.assert_array_equal(results, [batch(1), batch(2)])


def test_a_second_run_of_one_sequence_is_refused_until_the_first_has_ended() -> None:
    with loopback_pipeline(LoopbackDaemon(), written=WRITTEN) as pipeline:
        first = pipeline.run([batch(1), batch(2)], window=1)
        next(first)
        with pytest.raises(BuffersInUse, match=r"writes keys\.0, values\.0 and 1 more, and a run .* is under way"):
            pipeline(batch(3))
        first.close()  # type: ignore[attr-defined]
        np.testing.assert_array_equal(pipeline(batch(3))["y"], batch(3))
    with loopback_pipeline(LoopbackDaemon()) as pipeline:
        one, other = pipeline.run([batch(1)]), pipeline.run([batch(2)])
        np.testing.assert_array_equal([next(other)["y"], next(one)["y"]], [batch(2), batch(1)])


def test_where_there_is_no_next_generation_it_is_told_what_broke() -> None:
    daemon = LoopbackDaemon()
    daemon.ends_at = 2
    failed = DeploymentFailed("stage 1 died")
    with (
        loopback_pipeline(daemon, why_failed=lambda: failed, find_next=lambda *_: None) as pipeline,
        pytest.raises(DeploymentFailed, match="stage 1 died"),
    ):
        list(pipeline.run([batch(1), batch(2)]))


def test_what_the_callers_batches_raise_is_not_sent_again() -> None:
    def batches() -> Iterator[np.ndarray]:
        yield batch(1)
        raise Unavailable("the caller's own pipeline broke")

    def find_next(*_: object) -> Deployment:
        raise AssertionError("nothing broke here")

    with (
        loopback_pipeline(LoopbackDaemon(), find_next=find_next) as pipeline,
        pytest.raises(Unavailable, match="own pipeline"),
    ):
        list(pipeline.run(batches()))
