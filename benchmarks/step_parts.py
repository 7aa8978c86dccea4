"""Where a training step's time goes: each device's actions as the plan has them, beside what the daemons measured."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

from planner.client.timelines import DeploymentTimeline
from planner.schedule.measured import Span
from planner.schedule.timeline import Activity

# What the two ends of an edge count differently: plans have no wait, and daemons cannot tell one from the message.
_MESSAGES = frozenset(
    {
        Activity.RECEIVE,
        Activity.SEND,
        Activity.RECEIVE_GRADIENT,
        Activity.SEND_GRADIENT,
        Activity.TAKE_INPUT,
        Activity.GIVE_OUTPUT,
    }
)
_FIRST, _LAST = "call to first action", "last action to result"


def parts(timeline: DeploymentTimeline, calls: Sequence[tuple[float, float]]) -> Iterator[tuple[str, float, float]]:
    """(what, predicted, measured) seconds of a step, medians over the steps that the daemons still know of.

    `calls` are the beginning and the end of each step's call by time.monotonic, in order.
    """
    predicted: dict[str, float] = defaultdict(float)
    for event in timeline.predicted.events:
        predicted[_name(event.device_id, event.activity)] += event.end_seconds - event.start_seconds
    measured: dict[str, list[float]] = defaultdict(list)
    for thread in timeline.measured.threads:
        if thread.is_training:
            for spans in _by_run(thread.spans).values():
                for name, seconds in _seconds_of(thread.device_id, spans, calls).items():
                    measured[name].append(seconds)
    for name in sorted({*predicted, *measured}):
        yield name, predicted.get(name, 0.0), statistics.median(measured[name]) if measured[name] else 0.0


def _by_run(spans: Sequence[Span]) -> Mapping[int, list[Span]]:
    runs: dict[int, list[Span]] = defaultdict(list)
    for span in spans:
        runs[span.run].append(span)
    return runs


def _seconds_of(device_id: str, spans: Sequence[Span], calls: Sequence[tuple[float, float]]) -> Mapping[str, float]:
    seconds: dict[str, float] = defaultdict(float)
    for span in spans:
        seconds[_name(device_id, span.activity)] += span.end_seconds - span.start_seconds
    start, end = spans[0].start_seconds, spans[-1].end_seconds
    for called, answered in calls:
        if called <= start and end <= answered:
            seconds[f"{device_id}: {_FIRST}"] = start - called
            seconds[f"{device_id}: {_LAST}"] = answered - end
    return seconds


def _name(device_id: str, activity: Activity) -> str:
    return f"{device_id}: {'messages and waits' if activity in _MESSAGES else activity.value}"
