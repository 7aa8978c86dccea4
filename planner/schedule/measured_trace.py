"""A measured timeline beside the predicted one, as one Chrome trace document: see `trace` for the predicted half.

Processes named "measured: DEVICE" come first, with a track for each of the device's threads; the spans of a training
step lie in one span of the step. Both halves begin at 0.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from planner.schedule.measured import Measured, MeasuredThread, Span, Summary
from planner.schedule.timeline import Simulation
from planner.schedule.trace import chrome_trace, name_entry, span_times


def timeline_trace(measured: Measured, summary: Summary, simulation: Simulation) -> dict[str, Any]:
    """Of what the summary is of. A JSON document. Linear in the spans and events."""
    devices = list(dict.fromkeys(thread.device_id for thread in measured.threads))
    predicted = chrome_trace(simulation)
    entries: list[dict[str, Any]] = []
    for process, device_id in enumerate(devices):
        entries.append(name_entry("process_name", process, f"measured: {device_id}"))
        threads = [thread for thread in measured.threads if thread.device_id == device_id]
        for track, thread in enumerate(threads):
            entries.append(name_entry("thread_name", process, _track_name(thread), track))
            entries += _entries(thread, process, track, summary)
    entries += (_beside(entry, len(devices)) for entry in predicted["traceEvents"])
    entries += (
        {"ph": "M", "name": "process_sort_index", "pid": process, "tid": 0, "args": {"sort_index": process}}
        for process in sorted({entry["pid"] for entry in entries})
    )
    return {
        "traceEvents": entries,
        "displayTimeUnit": "ms",
        "otherData": {
            "measured_seconds": summary.end_seconds - summary.start_seconds,
            "measured_bubble_share": summary.bubble_share,
            "clock_error_seconds": measured.error_seconds,
            "predicted": predicted["otherData"],
        },
    }


def _beside(entry: dict[str, Any], first_process: int) -> dict[str, Any]:
    """An entry of the predicted half, after the processes of the measured one."""
    shifted_entry = {**entry, "pid": entry["pid"] + first_process}
    if entry["name"] == "process_name":
        shifted_entry["args"] = {"name": f"predicted: {entry['args']['name']}"}
    return shifted_entry


def _track_name(thread: MeasuredThread) -> str:
    stages = sorted({span.stage for span in thread.spans})
    of = "" if not stages else f" of stage {', '.join(map(str, stages))}"
    if thread.hands_on:
        return f"between clients and copies{of}"
    return f"{_what_is_done(thread)}{of}"


def _what_is_done(thread: MeasuredThread) -> str:
    """A GPU has a track for what comes to it, one for its passes, and one for what leaves it."""
    activities = {span.activity for span in thread.spans}
    are_passes = [activity.is_compute for activity in activities]
    if any(are_passes) and not all(are_passes):
        return "training steps" if thread.is_training else "microbatches"
    if any(are_passes):
        part = "passes"
    else:
        part = "inputs" if any(activity.is_receive for activity in activities) else "outputs"
    return f"{part} of training steps" if thread.is_training else part


def _entries(thread: MeasuredThread, process: int, track: int, summary: Summary) -> Iterator[dict[str, Any]]:
    spans = [span for span in thread.spans if summary.start_seconds <= span.start_seconds <= summary.end_seconds]
    if thread.is_training:
        # Before what they enclose.
        for step, (start, end) in _steps(spans).items():
            times = span_times(start - summary.start_seconds, end - summary.start_seconds)
            yield _entry(f"step {step}", "step", process, track, times, {"step": step})
    for span in spans:
        times = span_times(span.start_seconds - summary.start_seconds, span.end_seconds - summary.start_seconds)
        about = {"stage": span.stage, "run": span.run, "microbatch": span.microbatch}
        yield _entry(_name(span), span.activity.value, process, track, times, about)


def _steps(spans: Iterable[Span]) -> dict[int, tuple[float, float]]:
    """When each began and ended."""
    interval_of_step: dict[int, tuple[float, float]] = {}
    for span in spans:
        start, _ = interval_of_step.get(span.run, (span.start_seconds, 0.0))
        interval_of_step[span.run] = start, span.end_seconds
    return interval_of_step


def _entry(
    name: str, category: str, process: int, track: int, times: dict[str, float], about: dict[str, int]
) -> dict[str, Any]:
    return {"ph": "X", "name": name, "cat": category, "pid": process, "tid": track, **times, "args": about}


def _name(span: Span) -> str:
    return f"{span.activity.value} {span.microbatch}" if span.microbatch >= 0 else span.activity.value
