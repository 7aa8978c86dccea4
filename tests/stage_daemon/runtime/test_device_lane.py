"""A stage on a device that computes by itself, made up: what is launched when, and waited for before it leaves."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from stage_daemon.errors import DaemonError, StageFailed
from stage_daemon.runtime.actions import Action, Kind
from stage_daemon.runtime.device_lane import DeviceLane, interpreter_of
from stage_daemon.runtime.egress import Egress, Result
from stage_daemon.runtime.ingress import Ingress, Submission
from stage_daemon.runtime.interpreter import LaneInterpreter, Surroundings
from stage_daemon.runtime.metrics import StageMetrics
from stage_daemon.runtime.stage import Stage
from stage_daemon.runtime.timeline import COMPUTE, RECEIVES, SENDS
from stage_daemon.transport.parcel import Parcel, ParcelKind
from stage_daemon.transport.streams import Copies, Streams
from tests.stage_daemon.transport.edges import edge_of, tensor
from tests.stage_daemon.transport.made_up_device import MadeUpStreams
from tests.waiting import WAIT_SECONDS, wait_for

LANE = (Action(Kind.TAKE_INPUT, 0), Action(Kind.FORWARD, 0), Action(Kind.GIVE_OUTPUT, 0))
NUM = 5


EDGE = edge_of(tensor(1, "hidden", torch.float32, 2))


class Sent:
    """A channel that keeps what it is to send."""

    edge = EDGE

    def __init__(self, parcels: list[Parcel]) -> None:
        self._parcels = parcels

    def send(self, parcel: Parcel) -> int:
        self._parcels.append(parcel)
        return 0

    def prepare(self, parcel: Parcel) -> Callable[[], int]:
        return lambda: self.send(parcel)

    def wait(self, timeout_seconds: float | None = None) -> None:
        del timeout_seconds

    def close(self) -> None:
        pass


class Running:
    """The lane on its threads. `taken` has what was received, `given` what left it."""

    def __init__(
        self,
        streams: Streams | None,
        forward: Callable[[torch.Tensor], tuple[torch.Tensor]],
        lane: tuple[Action, ...] = LANE,
    ) -> None:
        self.taken: list[int] = []
        self.given: list[Result] = []
        self.may_give = threading.Semaphore(0)
        self.errors: list[BaseException] = []
        self.sent: list[Parcel] = []
        self.ingress = Ingress(lambda submission: None)
        self.metrics = StageMetrics()
        around = Surroundings(
            deployment_id="dep-1",
            stages={0: Stage(index=0, device_id="gpu", run=forward, input_ids=(1,), output_ids=(2,))},
            edges={EDGE.id: EDGE},
            senders={EDGE.id: Sent(self.sent)},
            receivers={},
            metrics={0: self.metrics},
            input_ids=(1,),
            output_ids=(2,),
            ingress=self.ingress,
            egress=Egress(1, self._give),
            streams=streams,
        )
        self.interpreter = interpreter_of(lane, around)

    def submit(
        self, sequence: int, item: torch.Tensor, on_device: Callable[..., tuple[torch.Tensor, ...]] = tuple
    ) -> None:
        def read() -> tuple[torch.Tensor, ...]:
            self.taken.append(sequence)
            return on_device([item])

        self.ingress.submit(Submission(session_id=1, sequence=sequence, read=read, acknowledged=False))

    @contextmanager
    def going_on(self) -> Iterator[None]:
        threads = [
            threading.Thread(target=self._guarded, args=(run,), name=name, daemon=True)
            for name, run in self.interpreter.threads.items()
        ]
        for thread in threads:
            thread.start()
        yield
        self.ingress.close()
        self.may_give.release(2 * NUM)
        for thread in threads:
            thread.join(WAIT_SECONDS)
            assert not thread.is_alive()

    def _give(self, result: Result) -> bool:
        assert self.may_give.acquire(timeout=WAIT_SECONDS)
        self.given.append(result)
        return True

    def _guarded(self, run: Callable[[], None]) -> None:
        try:
            run()
        except DaemonError as error:
            self.errors.append(error)


def test_the_next_microbatch_is_launched_before_the_one_before_has_left_and_a_third_is_received() -> None:
    streams, launched = MadeUpStreams(), []

    def forward(hidden: torch.Tensor) -> tuple[torch.Tensor]:
        launched.append(float(hidden[0]))
        return (hidden + 1,)

    running = Running(streams, forward)
    with running.going_on():
        for sequence in range(NUM):
            running.submit(sequence, torch.full((2,), float(sequence)))
        wait_for(lambda: len(launched) == 2, "the next microbatch to be launched")
        threading.Event().wait(0.1)
        assert launched == [0.0, 1.0]
        assert running.taken == [0, 1, 2]
        assert running.given == []
        running.may_give.release()
        wait_for(lambda: len(launched) == 3, "the third once the first has left")
        running.may_give.release(NUM)
        wait_for(lambda: len(running.given) == NUM, "all to leave")
    assert [float(result.items[0][0]) for result in running.given] == [1.0, 2.0, 3.0, 4.0, 5.0]
    assert running.metrics.num_microbatches == NUM


def test_a_microbatch_is_computed_before_it_leaves_and_its_memory_is_kept_for_the_way_out() -> None:
    streams = MadeUpStreams()
    running = Running(streams, lambda hidden: (hidden + 1,))
    with running.going_on():
        running.submit(0, torch.ones(2))
        running.may_give.release()
        wait_for(lambda: len(running.given) == 1, "it to leave")
    way_in, way_out = "stream 1", "stream 2"
    assert streams.log == [
        (f"waits for {way_in}", "compute"),
        ("kept for", "compute"),
        ("host waits for", "compute"),
        ("kept for", way_out),
    ]


def test_what_is_sent_ahead_of_a_pass_is_still_there_for_it() -> None:
    take, forward, give = LANE
    running = Running(MadeUpStreams(), lambda hidden: (hidden + 1,), (take, Action(Kind.SEND, EDGE.id), forward, give))
    with running.going_on():
        running.submit(0, torch.ones(2))
        running.may_give.release()
        wait_for(lambda: len(running.given) == 1, "it to leave")
    [result] = running.given
    assert result.failure is None
    assert [item.tolist() for item in result.items] == [[2.0, 2.0]]
    ahead, end = running.sent
    assert [item.tolist() for item in ahead.items] == [[1.0, 1.0]]
    assert end.kind is ParcelKind.END


def test_inputs_are_copied_on_the_way_in_and_the_host_waits_for_none_of_them() -> None:
    streams = MadeUpStreams()
    copies = Copies(streams, torch.device("cpu"))
    running = Running(streams, lambda hidden: (hidden + 1,))
    with running.going_on():
        running.submit(0, torch.ones(2), lambda items: tuple(copies.to_device(items)))
        running.may_give.release()
        wait_for(lambda: len(running.given) == 1, "it to leave")
    # The copies' own stream, the first that was made, is asked nothing.
    assert streams.log[0] == ("waits for stream 2", "compute")
    assert not any("stream 1" in (what, stream) for what, stream in streams.log)


def test_its_timelines_have_each_action_once_and_the_devices_own_seconds() -> None:
    streams = MadeUpStreams(seconds=0.25)
    running = Running(streams, lambda hidden: (hidden + 1,))
    with running.going_on():
        for sequence in range(NUM):
            running.submit(sequence, torch.ones(2))
        running.may_give.release(NUM)
        wait_for(lambda: len(running.given) == NUM, "all to leave")
    timelines = running.interpreter.timelines
    counts = [{times.kind: times.count for times in timeline.snapshot().times()} for timeline in timelines]
    # The end comes and goes too.
    assert counts == [{Kind.TAKE_INPUT: NUM + 1}, {Kind.GIVE_OUTPUT: NUM + 1}, {Kind.FORWARD: NUM}]
    assert sum(timeline.total_seconds(COMPUTE, 0) for timeline in timelines) == pytest.approx(NUM * 0.25)
    assert all(sum(timeline.total_seconds(kinds, 0) for timeline in timelines) > 0 for kinds in (RECEIVES, SENDS))
    assert all(timeline.under_way() is None for timeline in timelines)


def test_a_pass_that_is_not_done_is_under_way_since_it_was_launched() -> None:
    streams = MadeUpStreams(is_done=threading.Event())
    running = Running(streams, lambda hidden: (hidden + 1,))
    with running.going_on():
        running.submit(0, torch.ones(2))
        *_, timeline = running.interpreter.timelines
        wait_for(lambda: timeline.under_way() is not None, "the pass to be launched")
        under_way = timeline.under_way()
        assert under_way is not None
        assert under_way.timed.action.kind is Kind.FORWARD
        running.submit(1, torch.ones(2))
        later = timeline.under_way()
        assert later is not None
        assert later.since_seconds == under_way.since_seconds
        streams.is_done.set()
        running.may_give.release(2)
        wait_for(lambda: len(running.given) == 2, "both to leave")


def test_a_microbatch_that_cannot_be_launched_fails_alone() -> None:
    def forward(hidden: torch.Tensor) -> tuple[torch.Tensor]:
        if hidden[0] == 1:
            raise RuntimeError("odd")
        return (hidden,)

    running = Running(MadeUpStreams(), forward)
    with running.going_on():
        for sequence in range(3):
            running.submit(sequence, torch.full((2,), float(sequence)))
        running.may_give.release(3)
        wait_for(lambda: len(running.given) == 3, "all to leave")
    assert [result.failure is not None for result in running.given] == [False, True, False]
    failure = running.given[1].failure
    assert failure is not None
    assert (failure.stage, failure.device_id) == (0, "gpu")
    assert "odd" in failure.message
    *_, timeline = running.interpreter.timelines
    assert timeline.under_way() is None


def test_what_the_device_fails_at_ends_the_worker_by_the_stage_that_ran_and_nothing_leaves() -> None:
    running = Running(MadeUpStreams(failure=torch.AcceleratorError("assertion")), lambda hidden: (hidden,))
    with running.going_on():
        running.submit(0, torch.ones(2))
        running.may_give.release()
        wait_for(lambda: bool(running.errors), "the worker to be told")
    [error] = running.errors
    assert isinstance(error, StageFailed)
    assert (error.stage, error.device_id) == (0, "gpu")
    assert not any(result.items for result in running.given)


@pytest.mark.parametrize(
    ("streams", "lane", "expected"),
    [
        (None, LANE, LaneInterpreter),
        (MadeUpStreams(), LANE, DeviceLane),
        (MadeUpStreams(), (LANE[0], LANE[2]), LaneInterpreter),
    ],
)
def test_who_runs_no_stage_or_one_on_a_cpu_needs_one_thread(
    streams: Streams | None, lane: Any, expected: type[LaneInterpreter]
) -> None:
    around = Surroundings(
        deployment_id="dep-1",
        stages={0: Stage(index=0, device_id="", run=lambda x: (x,), input_ids=(1,), output_ids=(2,))},
        edges={},
        senders={},
        receivers={},
        metrics={0: StageMetrics()},
        streams=streams,
    )
    assert type(interpreter_of(lane, around)) is expected
