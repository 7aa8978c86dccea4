"""The timelines of a worker's threads as a message."""

from __future__ import annotations

from collections.abc import Sequence

from protos.v1 import stage_daemon_pb2
from stage_daemon.runtime.actions import Kind
from stage_daemon.runtime.timeline import TimedAction, Timeline
from stage_daemon.worker import wire


def timelines_to_proto(
    timelines: Sequence[Timeline], request: stage_daemon_pb2.GetTimelineRequest
) -> stage_daemon_pb2.GetTimelineResponse:
    response = stage_daemon_pb2.GetTimelineResponse()
    for timeline in timelines:
        _fill(response.threads.add(), timeline, only_totals=request.only_totals)
    return response


def _fill(message: stage_daemon_pb2.ThreadTimeline, timeline: Timeline, *, only_totals: bool) -> None:
    snapshot = timeline.snapshot()
    # Each lane has one pass forward and no step to agree on.
    message.is_training = any(timed.action.kind is Kind.AGREE for timed in timeline.actions)
    for timed in snapshot.actions:
        _fill_action(message.actions.add(), timed)
    if not only_totals:
        message.entries.extend(snapshot.entries.tolist())
        message.end_seconds.extend(snapshot.end_seconds.tolist())
    for times in snapshot.times():
        message.times.add(
            kind=wire.kind_to_proto(times.kind),
            stage=times.stage,
            count=times.count,
            seconds=times.seconds,
            p50_seconds=times.p50_seconds,
            p95_seconds=times.p95_seconds,
            p99_seconds=times.p99_seconds,
        )
    if snapshot.under_way is not None:
        _fill_action(message.under_way, snapshot.under_way.timed)
        message.under_way_since_seconds = snapshot.under_way.since_seconds


def _fill_action(message: stage_daemon_pb2.TimedAction, timed: TimedAction) -> None:
    message.action.kind, message.action.index = wire.kind_to_proto(timed.action.kind), timed.action.index
    if timed.action.microbatch is not None:
        message.action.microbatch = timed.action.microbatch
    message.stage = timed.stage
