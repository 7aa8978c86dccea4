"""What daemons measured of a deployment's schedule, as data, and sums over it beside the prediction."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import chain, groupby

import numpy as np

from planner.schedule.timeline import Activity

ONCE = -1

# Where it starts and ends, in seconds.
_Interval = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Span:
    """One action. `run` is the number of the training step, or of the microbatch in its stream; `microbatch` counts
    within the step, is the run itself in inference, and ONCE for what is done once per step."""

    activity: Activity
    stage: int
    run: int
    microbatch: int
    start_seconds: float
    end_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ActivityTimes:
    """All actions of one kind for one stage since the deployment started; the percentiles are of the latest."""

    activity: Activity
    stage: int
    count: int
    seconds: float
    p50_seconds: float
    p95_seconds: float
    p99_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredThread:
    """Of a lane, or of training steps: the latest spans that the daemon keeps, in order. What the thread does for other
    threads to enter, launching what a device computes, is a gap within a run.

    `under_way` ends when the daemon was asked. What `hands_on` runs no stage: it passes microbatches between clients
    and the copies of one, beside the first copy's own thread.
    """

    device_id: str
    is_training: bool
    spans: tuple[Span, ...]
    times: tuple[ActivityTimes, ...]
    under_way: Span | None = None
    hands_on: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """All threads on one clock, that of whoever asked. A moment of any device is wrong by `error_seconds` at most."""

    read_at_seconds: float
    error_seconds: float
    threads: tuple[MeasuredThread, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StageSummary:
    """Shares are of the window: what lacks to 1 lies between training steps, or is other stages' on the same device.

    Percentiles are of the seconds in which the stage computes for one microbatch, all of its passes together.
    """

    stage: int
    device_id: str
    busy_share: float
    receive_wait_share: float
    send_wait_share: float
    reduce_share: float
    microbatches_per_second: float
    p50_seconds: float
    p95_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """`bubble_share`: of all devices' time in training steps, or in the window where none was done, the share in which
    they do not compute; None where nothing was done."""

    start_seconds: float
    end_seconds: float
    bubble_share: float | None
    stages: tuple[StageSummary, ...]


def summarize(measured: Measured, since_seconds: float | None = None) -> Summary:
    """From that moment until the reading; without it, of all that every thread still knows of."""
    threads = tuple(_since(thread, since_seconds) for thread in measured.threads)
    # Lanes wait for evaluation while steps run.
    counted = tuple(thread for thread in threads if thread.is_training and thread.spans) or threads
    start = max((thread.spans[0].start_seconds for thread in counted if thread.spans), default=0.0)
    end = max((thread.spans[-1].end_seconds for thread in counted if thread.spans), default=start)
    if since_seconds is not None:
        start, end = since_seconds, measured.read_at_seconds
    window = _Window(start, end, counted)
    running = (thread for thread in counted if not thread.hands_on)
    keys = sorted({(span.stage, thread.device_id) for thread in running for span in _spans(thread)})
    return Summary(
        start_seconds=start,
        end_seconds=end,
        bubble_share=window.bubble_share(),
        stages=tuple(window.stage(stage, device_id) for stage, device_id in keys),
    )


def _since(thread: MeasuredThread, seconds: float | None) -> MeasuredThread:
    if seconds is None:
        return thread
    return replace(thread, spans=tuple(span for span in thread.spans if span.end_seconds > seconds))


@dataclass(frozen=True, slots=True)
class _Window:
    start: float
    end: float
    threads: tuple[MeasuredThread, ...]

    def stage(self, stage: int, device_id: str) -> StageSummary:
        spans = [
            span
            for thread in self.threads
            if thread.device_id == device_id and not thread.hands_on
            for span in _spans(thread)
            if span.stage == stage and self._seconds(span) > 0
        ]
        compute_seconds = self._spent_per_microbatch(stage, device_id)
        p50, p95 = np.percentile(compute_seconds, (50, 95)).tolist() if compute_seconds else (0.0, 0.0)
        return StageSummary(
            stage=stage,
            device_id=device_id,
            busy_share=self._share(spans, lambda activity: activity.is_compute),
            receive_wait_share=self._share(spans, lambda activity: activity.is_receive),
            send_wait_share=self._share(spans, lambda activity: activity.is_send),
            reduce_share=self._share(spans, lambda activity: activity.is_reduction),
            microbatches_per_second=len(compute_seconds) / (self.end - self.start) if self.end > self.start else 0.0,
            p50_seconds=p50,
            p95_seconds=p95,
        )

    def bubble_share(self) -> float | None:
        """Lanes of one device may compute at the same time: then it computes once."""
        by_device: dict[str, list[MeasuredThread]] = {}
        for thread in self.threads:
            by_device.setdefault(thread.device_id, []).append(thread)
        steps = [[thread for thread in threads if thread.is_training] for threads in by_device.values()]
        total = sum(self._covered(map(_in_runs, threads)) for threads in steps)
        if total:
            busy = sum(map(self._computing, steps))
            return max(0.0, 1.0 - busy / total)
        busy = sum(map(self._computing, by_device.values()))
        return max(0.0, 1.0 - busy / (len(by_device) * (self.end - self.start))) if busy else None

    def _spent_per_microbatch(self, stage: int, device_id: str) -> list[float]:
        """Of those that have a pass that ended in the window, in no order."""
        compute_seconds: dict[tuple[bool, int, int], float] = {}
        for thread in self.threads:
            for span in thread.spans if thread.device_id == device_id else ():
                if span.stage == stage and span.microbatch >= 0 and span.activity.is_compute:
                    key = (thread.is_training, span.run, span.microbatch)
                    if self.start < span.end_seconds <= self.end:
                        compute_seconds[key] = compute_seconds.get(key, 0.0) + span.end_seconds - span.start_seconds
        return list(compute_seconds.values())

    def _share(self, spans: Iterable[Span], fits: Callable[[Activity], bool]) -> float:
        total = self.end - self.start
        return sum(self._seconds(span) for span in spans if fits(span.activity)) / total if total > 0 else 0.0

    def _computing(self, threads: Iterable[MeasuredThread]) -> float:
        """Seconds in which some of them computes."""
        return self._covered(
            ((span.start_seconds, span.end_seconds) for span in _spans(thread) if span.activity.is_compute)
            for thread in threads
        )

    def _covered(self, intervals_of_threads: Iterable[Iterable[_Interval]]) -> float:
        """Seconds of the window that lie in some interval."""
        seconds, until = 0.0, self.start
        for start, end in sorted(chain.from_iterable(intervals_of_threads)):
            end = min(end, self.end)
            seconds += max(0.0, end - max(start, until))
            until = max(until, end)
        return seconds

    def _seconds(self, span: Span) -> float:
        return max(0.0, min(span.end_seconds, self.end) - max(span.start_seconds, self.start))


def _in_runs(thread: MeasuredThread) -> Iterator[_Interval]:
    """From the first span of each run to its last."""
    for _, spans in groupby(_spans(thread), lambda span: span.run):
        of_run = list(spans)
        yield of_run[0].start_seconds, of_run[-1].end_seconds


def _spans(thread: MeasuredThread) -> Iterator[Span]:
    yield from thread.spans
    if thread.under_way is not None:
        yield thread.under_way
