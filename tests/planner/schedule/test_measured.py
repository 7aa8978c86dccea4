"""Sums over a measured timeline, and its trace beside the predicted one."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.schedule.measured import ONCE, Measured, MeasuredThread, Span, StageSummary, summarize
from planner.schedule.measured_trace import timeline_trace
from planner.schedule.timeline import Activity, DeviceTime, Event, Simulation
from tests.random_examples import random_examples

TICK = 0.125
ACTIVITIES = (Activity.RECEIVE, Activity.FORWARD, Activity.SEND)


def lane(
    device_id: str, stage: int, start: float, seconds: list[tuple[float, float, float]], under_way: Span | None = None
) -> MeasuredThread:
    """Receives, computes and sends one microbatch after the other."""
    spans, now = [], start
    for number, times in enumerate(seconds):
        for activity, spent in zip(ACTIVITIES, times, strict=True):
            spans.append(Span(activity, stage, number + 1, number + 1, now, now + spent))
            now += spent
    return MeasuredThread(device_id=device_id, is_training=False, spans=tuple(spans), times=(), under_way=under_way)


def measured(*threads: MeasuredThread, at: float = 100.0, error: float = 0.0) -> Measured:
    return Measured(read_at_seconds=at, error_seconds=error, threads=threads)


def only(stages: tuple[StageSummary, ...]) -> StageSummary:
    [stage] = stages
    return stage


def test_a_stage_shares_its_time_out() -> None:
    summary = summarize(measured(lane("a", 0, 10.0, [(1.0, 2.0, 0.5), (0.5, 3.0, 1.0)])))
    stage = only(summary.stages)
    assert (summary.start_seconds, summary.end_seconds, summary.bubble_share) == (10.0, 18.0, 3 / 8)
    assert (stage.busy_share, stage.receive_wait_share, stage.send_wait_share) == (5 / 8, 1.5 / 8, 1.5 / 8)
    assert (stage.reduce_share, stage.microbatches_per_second) == (0.0, 0.25)
    assert (stage.p50_seconds, stage.p95_seconds) == (2.5, pytest.approx(2.95))


def test_since_a_moment_what_is_under_way_counts_and_what_was_before_does_not() -> None:
    waiting = Span(Activity.RECEIVE, 0, 3, 3, 18.0, 20.0)
    timeline = measured(lane("a", 0, 10.0, [(1.0, 2.0, 0.5), (0.5, 3.0, 1.0)], waiting), at=20.0)
    summary = summarize(timeline, 16.0)
    stage = only(summary.stages)
    assert (summary.start_seconds, summary.end_seconds) == (16.0, 20.0)
    assert (stage.busy_share, stage.receive_wait_share, stage.send_wait_share) == (1 / 4, 2 / 4, 1 / 4)
    assert (stage.microbatches_per_second, summary.bubble_share) == (0.25, 3 / 4)
    assert stage.p50_seconds == 3.0


def test_before_anything_has_run_there_is_no_bubble() -> None:
    idle = MeasuredThread(device_id="a", is_training=False, spans=(), times=())
    assert summarize(measured(idle)).bubble_share is None
    waiting = Span(Activity.TAKE_INPUT, 0, 0, 0, 5.0, 9.0)
    timeline = measured(MeasuredThread(device_id="a", is_training=False, spans=(), times=(), under_way=waiting), at=9.0)
    assert summarize(timeline).bubble_share is None
    assert only(summarize(timeline, 7.0).stages).receive_wait_share == 1.0


def step_thread(device_id: str, stage: int, starts: list[float], microbatches: int = 2) -> MeasuredThread:
    """Each step: per microbatch a receive of 1 and a pass of 2, then 1 to agree and 3 to step the optimizer."""
    spans: list[Span] = []
    for run, start in enumerate(starts):
        now = start
        for microbatch in range(microbatches):
            spans.append(Span(Activity.RECEIVE, stage, run, microbatch, now, now + 1.0))
            spans.append(Span(Activity.BACKWARD, stage, run, microbatch, now + 1.0, now + 3.0))
            now += 3.0
        spans.append(Span(Activity.AGREE, stage, run, ONCE, now, now + 1.0))
        spans.append(Span(Activity.OPTIMIZER_STEP, stage, run, ONCE, now + 1.0, now + 4.0))
    return MeasuredThread(device_id=device_id, is_training=True, spans=tuple(spans), times=())


def test_the_bubble_of_training_is_within_steps() -> None:
    """What lies between two steps is the client's, and evaluation is not a step."""
    waiting = Span(Activity.TAKE_INPUT, 0, 2, 2, 3.5, 100.0)
    evaluation = lane("a", 0, 0.0, [(1.0, 2.0, 0.5)], waiting)
    timeline = measured(step_thread("a", 0, [0.0, 20.0]), evaluation, step_thread("b", 1, [0.0, 20.0]))
    summary = summarize(timeline)
    assert (summary.start_seconds, summary.end_seconds, summary.bubble_share) == (0.0, 30.0, pytest.approx(3 / 10))
    for stage in summary.stages:
        assert stage.busy_share == pytest.approx(14 / 30)
        assert stage.reduce_share == pytest.approx(2 / 30)
        assert stage.receive_wait_share == pytest.approx(4 / 30)
        assert (stage.microbatches_per_second, stage.p50_seconds) == (4 / 30, 2.0)


def test_a_gpu_s_threads_are_together_in_a_step() -> None:
    """It computes 4 of the 10 seconds of each step, whichever thread tells of it; launching is a gap in the first."""
    spans: list[list[Span]] = [[], [], []]
    for run, start in enumerate((0.0, 50.0)):
        for thread, activity, begin, end in (
            (0, Activity.RECEIVE, 0.0, 1.0),
            (1, Activity.FORWARD, 2.0, 4.0),
            (0, Activity.RECEIVE, 2.0, 3.0),
            (2, Activity.SEND, 4.0, 5.0),
            (0, Activity.AGREE, 6.0, 7.0),
            (1, Activity.OPTIMIZER_STEP, 8.0, 10.0),
        ):
            spans[thread].append(Span(activity, 0, run, 0, start + begin, start + end))
    threads = [MeasuredThread(device_id="a", is_training=True, spans=tuple(one), times=()) for one in spans]
    timeline = measured(*threads)
    assert summarize(timeline, 0.0).bubble_share == pytest.approx(6 / 10)
    beside = step_thread("b", 1, [0.0, 50.0])
    assert summarize(measured(*threads, beside), 0.0).bubble_share == pytest.approx((6 + 3) / 20)


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["a", "b"]),
            st.integers(0, 8),
            st.lists(st.tuples(*[st.integers(0, 4)] * 3), min_size=1, max_size=4),
        ),
        min_size=1,
        max_size=4,
    ),
    st.one_of(st.none(), st.integers(0, 40)),
)
@random_examples(60)
def test_shares_are_those_of_counted_ticks(
    lanes: list[tuple[str, int, list[tuple[int, int, int]]]], since: int | None
) -> None:
    """A device computes in a tick in which some of its lanes does."""
    threads = [
        lane(device, stage, TICK * start, [(TICK * r, TICK * f, TICK * s) for r, f, s in seconds])
        for stage, (device, start, seconds) in enumerate(lanes)
    ]
    until = TICK * 60
    summary = summarize(measured(*threads, at=until), None if since is None else TICK * since)
    first, last = round(summary.start_seconds / TICK), round(summary.end_seconds / TICK)
    if last <= first:
        return
    computing = {device: set[int]() for device, _, _ in lanes}
    for stage, (device, start, seconds) in enumerate(lanes):
        ticks: dict[Activity, int] = dict.fromkeys(ACTIVITIES, 0)
        now = start
        for times in seconds:
            for activity, num in zip(ACTIVITIES, times, strict=True):
                inside = [tick for tick in range(now, now + num) if first <= tick < last]
                ticks[activity] += len(inside)
                if activity is Activity.FORWARD:
                    computing[device].update(inside)
                now += num
        for share in (one for one in summary.stages if one.stage == stage):
            shares = share.receive_wait_share, share.busy_share, share.send_wait_share
            assert shares == pytest.approx([ticks[activity] / (last - first) for activity in ACTIVITIES])
    total = len(computing) * (last - first)
    busy = sum(map(len, computing.values()))
    assert summary.bubble_share == (pytest.approx(1 - busy / total) if busy else None)


SIMULATION = Simulation(
    microbatches=2,
    makespan_seconds=4.0,
    bubble_share=0.5,
    devices=(DeviceTime(device_id="a", busy_seconds=2.0, communication_seconds=0.0, waiting_seconds=2.0),),
    links=(),
    output_seconds=(1.0, 2.0),
    events=(Event("a", Activity.FORWARD, 0, 1, 1.0, 2.0),),
    transfers=(),
)


@pytest.mark.parametrize(
    ("activities", "is_training", "expected"),
    [
        ([Activity.RECEIVE, Activity.FORWARD, Activity.SEND], False, "microbatches of stage 2"),
        ([Activity.RECEIVE, Activity.SEND], False, "inputs of stage 2"),
        ([Activity.FORWARD], False, "passes of stage 2"),
        ([Activity.SEND, Activity.GIVE_OUTPUT], False, "outputs of stage 2"),
        ([Activity.RECEIVE, Activity.FORWARD, Activity.AGREE], True, "training steps of stage 2"),
        ([Activity.RECEIVE, Activity.AGREE], True, "inputs of training steps of stage 2"),
        ([Activity.FORWARD, Activity.BACKWARD], True, "passes of training steps of stage 2"),
        ([Activity.SEND, Activity.SEND_GRADIENT], True, "outputs of training steps of stage 2"),
    ],
)
def test_a_stage_on_a_gpu_has_a_track_for_its_inputs_its_passes_and_its_outputs(
    activities: list[Activity], is_training: bool, expected: str
) -> None:
    spans = tuple(Span(activity, 2, 0, 0, float(at), at + 1.0) for at, activity in enumerate(activities))
    timeline = measured(MeasuredThread(device_id="a", is_training=is_training, spans=spans, times=()))
    document: dict[str, Any] = timeline_trace(timeline, summarize(timeline), SIMULATION)
    names = [one for one in document["traceEvents"] if one["name"] == "thread_name"]
    assert names[0]["args"]["name"] == expected


def test_measured_and_predicted_stand_side_by_side_and_begin_together() -> None:
    timeline = measured(step_thread("a", 0, [5.0]), lane("a", 0, 1.0, [(1.0, 2.0, 0.5)]), error=0.25)
    document: dict[str, Any] = timeline_trace(timeline, summarize(timeline), SIMULATION)
    entries: list[dict[str, Any]] = document["traceEvents"]
    names = [(one["pid"], one["args"]["name"]) for one in entries if one["name"] == "process_name"]
    assert names == [(0, "measured: a"), (1, "predicted: a")]
    tracks = {(one["pid"], one["tid"]): one["args"]["name"] for one in entries if one["name"] == "thread_name"}
    assert tracks == {
        (0, 0): "training steps of stage 0",
        (0, 1): "microbatches of stage 0",
        (1, 0): "compute",
        (1, 1): "transfers",
    }
    order = [(one["pid"], one["args"]["sort_index"]) for one in entries if one["name"] == "process_sort_index"]
    assert order == [(0, 0), (1, 1)]
    spans = [(one["pid"], one["tid"], one["name"], one["ts"], one["dur"]) for one in entries if one["ph"] == "X"]
    # The lane ran before the first step that every thread knows of.
    assert spans == [
        (0, 0, "step 0", 0.0, 10e6),
        (0, 0, "receive 0", 0.0, 1e6),
        (0, 0, "backward 0", 1e6, 2e6),
        (0, 0, "receive 1", 3e6, 1e6),
        (0, 0, "backward 1", 4e6, 2e6),
        (0, 0, "agree on the step", 6e6, 1e6),
        (0, 0, "optimizer step", 7e6, 3e6),
        (1, 0, "forward 1", 1e6, 1e6),
    ]
    assert document["otherData"]["clock_error_seconds"] == 0.25
    assert document["otherData"]["measured_bubble_share"] == pytest.approx(3 / 10)
    assert document["otherData"]["predicted"]["bubble_share"] == 0.5
