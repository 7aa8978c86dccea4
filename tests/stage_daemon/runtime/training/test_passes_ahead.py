"""Steps of devices that compute by themselves, made up: what is launched ahead, what leaves when, and what is told."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

from planner.partition.objective import Activations, PipelineSchedule
from stage_daemon.errors import StageFailed
from stage_daemon.runtime.actions import Action, Kind
from stage_daemon.runtime.stage import Stage
from stage_daemon.runtime.timeline import COMPUTE, SENDS, timed
from stage_daemon.runtime.training.passes_ahead import PassesAhead
from stage_daemon.runtime.training.records import Step
from stage_daemon.runtime.training.step import StepInterpreter
from tests.stage_daemon.runtime.training.devices import SEED, SGD
from tests.stage_daemon.runtime.training.modules import Layers, Normed, Skips, Tied, rows, tokens
from tests.stage_daemon.runtime.training.test_step import assert_same_steps, both
from tests.stage_daemon.transport.made_up_device import MadeUpStreams
from tests.waiting import WAIT_SECONDS, wait_for

STEP = tuple(
    Action(kind, index, microbatch) for microbatch in range(4) for kind, index in ((Kind.FORWARD, 0), (Kind.SEND, 7))
)
STAGE = Stage(index=3, device_id="gpu", run=lambda: (), input_ids=(), output_ids=())


@pytest.mark.parametrize(
    ("module", "make", "options"),
    [
        (Layers(), rows, {"schedule": PipelineSchedule.GPIPE}),
        (Skips(), rows, {}),
        (Tied(), tokens, {}),
        (Skips(), rows, {"schedule": PipelineSchedule.ZERO_BUBBLE}),
        (Normed(), rows, {"activations": Activations.RECOMPUTED}),
    ],
    ids=["gpipe", "skips", "tied", "split backward", "recomputed"],
)
def test_steps_are_those_of_one_process(
    module: nn.Module, make: Callable[[int, int], Any], options: dict[str, Any]
) -> None:
    cluster, eager = both(module, make, 3, [0, 1, 0], streams=lambda: MadeUpStreams(seconds=0.25), **options)
    eager.loss_of = lambda output: output[0] if isinstance(output, tuple) else output
    # Tied gradients are added in another order.
    assert_same_steps(cluster, eager, make, tolerance=1e-6 if isinstance(module, Tied) else 0.0)
    for outcome in cluster.outcomes.values():
        # Each pass takes what the device says.
        num_passes, rest = divmod(outcome.busy_seconds, 0.25)
        assert num_passes >= 10
        assert rest == 0.0


class Running:
    """Passes on their thread. `left` has what left, in order."""

    def __init__(self, streams: MadeUpStreams) -> None:
        self.passes = PassesAhead(timed(STEP, [0] * len(STEP)), streams)
        self.left: list[int] = []
        self.errors: list[BaseException] = []
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        [run] = self.passes.threads().values()
        try:
            run()
        except BaseException as error:
            self.errors.append(error)

    def compute(self, microbatch: int) -> None:
        self.passes.wait_for_room()
        with self.passes.computing(STAGE, 1, 2 * microbatch):
            pass

    def send(self, microbatch: int, leave: Callable[[], object] = lambda: None) -> None:
        def go() -> None:
            leave()
            self.left.append(microbatch)

        self.passes.hand_on(1, 2 * microbatch + 1, go)

    def end(self) -> None:
        self.passes.end()
        self.thread.join(WAIT_SECONDS)
        assert not self.thread.is_alive()


def test_two_passes_are_launched_before_the_first_is_computed_and_nothing_leaves_until_then() -> None:
    is_done = threading.Event()
    running = Running(MadeUpStreams(is_done=is_done))
    launched: list[int] = []

    def step() -> None:
        for microbatch in range(4):
            running.compute(microbatch)
            launched.append(microbatch)
            running.send(microbatch)
        running.passes.settle()

    thread = threading.Thread(target=step, daemon=True)
    thread.start()
    wait_for(lambda: len(launched) == 2)
    thread.join(0.1)
    assert (launched, running.left) == ([0, 1], [])
    is_done.set()
    thread.join(WAIT_SECONDS)
    assert not thread.is_alive()
    assert launched == running.left == [0, 1, 2, 3]
    running.end()


def test_what_is_packed_behind_a_pass_leaves_once_that_is_computed_too() -> None:
    is_done = threading.Event()
    streams = MadeUpStreams(is_done=is_done)
    running = Running(streams)
    running.send(0)
    running.thread.join(0.1)
    assert running.left == []
    is_done.set()
    running.passes.settle()
    assert running.left == [0]
    assert streams.log == [("host waits for", "compute")]
    running.end()


def test_a_slow_receiver_holds_the_step_up_and_no_memory_beyond_two_messages() -> None:
    may_leave = threading.Semaphore(0)
    running = Running(MadeUpStreams())
    handed: list[int] = []

    def step() -> None:
        for microbatch in range(4):
            running.compute(microbatch)
            running.send(microbatch, may_leave.acquire)
            handed.append(microbatch)
        running.passes.settle()

    thread = threading.Thread(target=step, daemon=True)
    thread.start()
    wait_for(lambda: len(handed) == 2)
    thread.join(0.1)
    assert handed == [0, 1]
    may_leave.release(4)
    thread.join(WAIT_SECONDS)
    assert not thread.is_alive()
    assert running.left == [0, 1, 2, 3]
    running.end()


def test_what_a_device_fails_at_is_its_stage_s_fault_and_ends_both_threads() -> None:
    running = Running(MadeUpStreams(failure=torch.AcceleratorError("device-side assert")))
    running.compute(0)
    with pytest.raises(StageFailed, match="stage 3: AcceleratorError: device-side assert") as caught:
        running.passes.settle()
    assert (caught.value.stage, caught.value.device_id) == (3, "gpu")
    running.thread.join(WAIT_SECONDS)
    assert running.errors == [caught.value]
    with pytest.raises(StageFailed):
        running.passes.wait_for_room()
    with pytest.raises(StageFailed):
        running.send(0)
    assert running.left == []


def test_a_pass_that_cannot_be_launched_is_forgotten() -> None:
    running = Running(MadeUpStreams(seconds=0.5))
    for _ in range(3):
        running.passes.wait_for_room()
        with pytest.raises(MemoryError), running.passes.computing(STAGE, 1, 0):
            raise MemoryError
    running.compute(1)
    running.passes.settle()
    _, device, _ = running.passes.timelines
    assert [timeline.total_seconds(COMPUTE) for timeline in running.passes.timelines] == [0.0, 0.5, 0.0]
    assert device.under_way() is None
    running.end()


def test_each_thread_has_a_timeline_and_no_action_stands_in_two() -> None:
    is_done = threading.Event()
    running = Running(MadeUpStreams(seconds=0.5, is_done=is_done))
    leaving = (Kind.SEND, Kind.SEND_GRADIENT, Kind.GIVE_OUTPUT)
    assert all(running.passes.times_elsewhere(kind) for kind in (*COMPUTE, *leaving))
    assert not any(running.passes.times_elsewhere(kind) for kind in (Kind.RECEIVE, Kind.AGREE))
    _, device, departures = running.passes.timelines
    running.compute(1)
    running.send(1)
    under_way = device.under_way()
    assert under_way is not None
    assert under_way.timed.action == STEP[2]
    is_done.set()
    running.passes.settle()
    assert [list(timeline.snapshot().entries) for timeline in (device, departures)] == [[-2, 2], [-2, 3]]
    assert device.total_seconds(COMPUTE) == 0.5
    assert 0.0 <= departures.total_seconds(SENDS) < WAIT_SECONDS
    running.end()


def test_outputs_leave_the_device_on_the_thread_that_waits_for_it() -> None:
    streams = MadeUpStreams()
    cluster, _ = both(Layers(), rows, 1, [0], streams=lambda: streams)
    [told] = cluster.told.values()
    brought: list[str] = []

    def to_host(items: tuple[Any, ...]) -> tuple[Any, ...]:
        brought.append(threading.current_thread().name)
        assert ("host waits for", "compute") in streams.log
        return items

    [output] = cluster.graph.outputs
    content: Any = output.content
    interpreter = StepInterpreter(
        replace(told.around, to_host=to_host), told.weights, SGD, loss_id=content.value_id, seed=SEED
    )
    step = Step(
        number=1,
        weights=(0.25,) * 4,
        learning_rates=(0.1,),
        microbatches={place: partial(rows, 4, place) for place in range(4)},
    )
    outcome = interpreter.run(step)
    assert (sorted(outcome.outputs), outcome.applied) == ([0, 1, 2, 3], True)
    assert brought == ["training-out"] * 4
