"""The ring of a thread's timeline, beside a list of everything that was written to it."""

from __future__ import annotations

import threading
from array import array
from dataclasses import dataclass, field

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from stage_daemon.runtime.action_loop import ActionLoop
from stage_daemon.runtime.actions import Action, Kind
from stage_daemon.runtime.environment import Environment
from stage_daemon.runtime.timeline import COMPUTE, ELSEWHERE, SENDS, Snapshot, Timeline, timed
from tests.random_examples import random_examples

LANE = (Action(Kind.RECEIVE, 4), Action(Kind.FORWARD, 1), Action(Kind.SEND, 5))


@dataclass(slots=True)
class Writer:
    """Writes moments of its own choice; `entries` and `ends` remember all of them."""

    timeline: Timeline
    now: float = 1.0
    entries: list[int] = field(default_factory=list)
    ends: list[float] = field(default_factory=list)

    def run(self, number: int, actions: list[int], seconds: list[float]) -> None:
        """Does the first actions of a run, as many as there are seconds."""
        position = self.timeline.begin(number, array("q", actions))
        self.timeline.ends[position - 1] = self.now
        self.entries.append(-1 - number)
        self.ends.append(self.now)
        for action, duration in zip(actions, seconds, strict=False):
            self.now += duration
            self.timeline.ends[position] = self.now
            position += 1
            self.timeline.position = position
            self.entries.append(action)
            self.ends.append(self.now)


@given(
    st.integers(0, 40),
    st.lists(st.lists(st.sampled_from([0.0, 0.25, 3.0]), max_size=5), max_size=40),
    st.booleans(),
)
@random_examples(60)
def test_the_ring_has_the_latest_whole_runs_and_the_totals_everything(
    capacity: int, runs: list[list[float]], last_is_under_way: bool
) -> None:
    actions = tuple(Action(Kind.FORWARD if at % 2 else Kind.RECEIVE, at) for at in range(5))
    writer = Writer(Timeline(timed(actions, [7] * 5), capacity))
    for number, seconds in enumerate(runs):
        writer.run(number, list(range(len(seconds))), seconds)
    if last_is_under_way:
        writer.run(len(runs), [0, 1, 2], [1.0])
    snapshot = writer.timeline.snapshot()
    num_entries = len(snapshot.entries)
    assert snapshot.entries.tolist() == writer.entries[len(writer.entries) - num_entries :]
    assert snapshot.end_seconds.tolist() == writer.ends[len(writer.ends) - num_entries :]
    assert not num_entries or snapshot.entries[0] < 0
    # Of two laps one is whole, but for a run that is cut and the room left at its end.
    assert num_entries >= min(len(writer.entries), capacity - 2 * 6)
    assert snapshot.counts.tolist() == [writer.entries.count(action) for action in range(5)]
    assert np.allclose(snapshot.seconds, [_seconds(writer, action) for action in range(5)])
    assert writer.timeline.total_seconds(COMPUTE) == float(snapshot.seconds[[1, 3]].sum())
    assert writer.timeline.total_seconds(COMPUTE, stage=6) == writer.timeline.total_seconds(SENDS) == 0.0
    under_way = snapshot.under_way
    assert (under_way is not None) == last_is_under_way
    if under_way is not None:
        assert (under_way.timed.action, under_way.since_seconds) == (actions[1], writer.now)


def _seconds(writer: Writer, action: int) -> float:
    entries, ends = writer.entries, writer.ends
    return sum(ends[at] - ends[at - 1] for at in range(len(entries)) if entries[at] == action)


def test_what_another_thread_enters_is_a_gap() -> None:
    timeline = Timeline(timed(LANE, [1, 1, 1]))
    position = timeline.begin(4, array("q", [0, ELSEWHERE, 2]))
    for at, end in enumerate((11.0, 13.0, 14.0), position):
        timeline.ends[at] = end
        timeline.position = at + 1
    timeline.ends[position - 1] = 10.0
    snapshot = timeline.snapshot()
    assert list(snapshot.entries) == [-5, 0, -5, 2]
    assert [(times.kind, times.seconds) for times in snapshot.times()] == [(Kind.RECEIVE, 1.0), (Kind.SEND, 1.0)]
    assert timeline.total_seconds(COMPUTE) == 0.0
    timeline.begin(5, array("q", [ELSEWHERE]))
    assert timeline.under_way() is None


def test_percentiles_are_of_each_kind_and_stage_alone() -> None:
    writer = Writer(Timeline(timed(LANE, [1, 1, 1])))
    for number in range(100):
        writer.run(number, [0, 1, 2], [10.0, 1.0 + number, 0.5])
    receive, forward, send = writer.timeline.snapshot().times()
    assert (forward.kind, forward.stage, forward.count, forward.seconds) == (Kind.FORWARD, 1, 100, 5050.0)
    assert (forward.p50_seconds, forward.p95_seconds, forward.p99_seconds) == (50.5, 95.05, 99.01)
    assert (receive.kind, receive.p50_seconds, receive.p99_seconds) == (Kind.RECEIVE, 10.0, 10.0)
    assert (send.kind, send.seconds) == (Kind.SEND, 50.0)


def test_what_has_not_been_done_has_no_times() -> None:
    timeline = Timeline(timed(LANE, [0, 0, 0]))
    assert list(timeline.snapshot().times()) == []
    assert timeline.under_way() is None
    timeline.begin(1, array("q", [0, 1, 2]))
    under_way = timeline.under_way()
    assert under_way is not None
    assert under_way.timed.action == LANE[0]


def test_a_reader_sees_whole_runs_while_the_lane_goes_on() -> None:
    timeline = Timeline(timed(LANE, [0, 0, 0]), capacity=50)
    loop = ActionLoop(
        LANE,
        dict.fromkeys((action.kind for action in LANE), lambda index, environment: None),
        [0] * len(LANE),
        [()] * len(LANE),
        timeline,
        range(len(LANE)),
    )
    snapshots: list[Snapshot] = []
    is_over = threading.Event()

    def read() -> None:
        while not is_over.is_set():
            snapshots.append(timeline.snapshot())

    reader = threading.Thread(target=read)
    reader.start()
    number = 0
    while number < 20_000 or len(snapshots) < 5:
        loop.run(number, (Environment(microbatch=number),))
        number += 1
    is_over.set()
    reader.join()
    for snapshot in (*snapshots, timeline.snapshot()):
        begins = np.flatnonzero(snapshot.entries < 0)
        numbers = (-1 - snapshot.entries[begins]).tolist()
        assert numbers == list(range(numbers[0], numbers[0] + len(numbers))) if numbers else True
        assert [run.tolist() for run in np.split(snapshot.entries, begins)[1:-1]] == [
            [-1 - number, 0, 1, 2] for number in numbers[:-1]
        ]
        assert (np.diff(snapshot.end_seconds) >= 0).all()
        assert max(snapshot.counts) - min(snapshot.counts) <= 1
    assert timeline.snapshot().counts.tolist() == [number] * 3
