"""Clocks of other hosts, and what daemons told by them, on the clock here."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.client.clocks import Exchange, Offset, offset_of
from planner.client.timelines import thread_from_proto
from planner.schedule.measured import ONCE, Span
from planner.schedule.timeline import Activity
from protos.v1 import stage_daemon_pb2
from stage_daemon.runtime.actions import Kind
from tests.random_examples import random_examples

PLACES = st.sampled_from([0.0, 0.001, 0.5, 2.0])


@given(st.sampled_from([-1e6, -3.0, 0.0, 0.25, 1e6]), st.lists(st.tuples(PLACES, PLACES, PLACES), min_size=1))
@random_examples(60)
def test_the_other_clock_is_where_the_error_says(ahead: float, ways: list[tuple[float, float, float]]) -> None:
    """`ways` are of each exchange the seconds there, with the other, and back."""
    exchanges, now = [], 100.0
    for there, work, back in ways:
        exchanges.append(
            Exchange(
                asked_seconds=now,
                received_seconds=now + there + ahead,
                answered_seconds=now + there + work + ahead,
                returned_seconds=now + there + work + back,
            )
        )
        now += there + work + back
    offset = offset_of(exchanges)
    assert abs(offset.seconds - ahead) <= offset.error_seconds + 1e-9
    assert offset.error_seconds == pytest.approx(min(there + back for there, _, back in ways) / 2, abs=1e-9)


def action(kind: Kind, stage: int, microbatch: int | None = None) -> stage_daemon_pb2.TimedAction:
    name = stage_daemon_pb2.ActionKind.Value(f"ACTION_KIND_{kind.name}")
    return stage_daemon_pb2.TimedAction(
        action=stage_daemon_pb2.Action(kind=name, index=9, microbatch=microbatch), stage=stage
    )


def test_spans_are_on_the_clock_here() -> None:
    message = stage_daemon_pb2.ThreadTimeline(
        actions=[action(Kind.RECEIVE, 1), action(Kind.FORWARD, 1)],
        entries=[-1 - 7, 0, 1, -1 - 8, 0],
        end_seconds=[1000.0, 1001.0, 1003.0, 1003.5, 1004.0],
        under_way=action(Kind.FORWARD, 1),
        under_way_since_seconds=1004.0,
    )
    thread = thread_from_proto(message, "b", 1006.0, Offset(seconds=990.0, error_seconds=0.5))
    assert (thread.device_id, thread.is_training) == ("b", False)
    assert thread.spans == (
        Span(Activity.RECEIVE, 1, 7, 7, 10.0, 11.0),
        Span(Activity.FORWARD, 1, 7, 7, 11.0, 13.0),
        Span(Activity.RECEIVE, 1, 8, 8, 13.5, 14.0),
    )
    assert thread.under_way == Span(Activity.FORWARD, 1, 8, 8, 14.0, 16.0)


def test_microbatches_of_a_step_count_within_it() -> None:
    message = stage_daemon_pb2.ThreadTimeline(
        is_training=True,
        actions=[action(Kind.BACKWARD_WEIGHT, 2, 3), action(Kind.REDUCE_TIED, 2), action(Kind.OPTIMIZER_STEP, 2)],
        entries=[-1 - 5, 0, 1, 2],
        end_seconds=[0.0, 1.0, 2.0, 3.0],
        times=[stage_daemon_pb2.ActivityTimes(kind=stage_daemon_pb2.ACTION_KIND_REDUCE_TIED, stage=2, count=4)],
    )
    thread = thread_from_proto(message, "a", 9.0, Offset(seconds=0.0, error_seconds=0.0))
    assert [(span.activity, span.run, span.microbatch) for span in thread.spans] == [
        (Activity.BACKWARD_WEIGHT, 5, 3),
        (Activity.REDUCE, 5, ONCE),
        (Activity.OPTIMIZER_STEP, 5, ONCE),
    ]
    assert (thread.is_training, thread.under_way) == (True, None)
    assert [(times.activity, times.count) for times in thread.times] == [(Activity.REDUCE, 4)]
