"""Seconds of one call: the median over repetitions, each of them long enough for its clock.

Calls follow each other as in a run of the stage, so that on a GPU what starting a kernel costs is in the time where it
is what takes long. Operators of one thread are timed by what that thread spends, which is what they take of a core of
their own, whatever else the host has to do.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

Call = Callable[[], object]
Clock = Callable[[], float]

# A repetition is of as many calls as take this long together.
REPETITION_SECONDS = 1e-4
MOST_CALLS = 100
# Slow nodes are repeated less: at least once after one call to warm up.
MOST_SECONDS = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    repetitions: int = 20
    warmup: int = 3


def seconds_of(call: Call, device: torch.device, effort: Effort) -> float:
    """Raises what the call raises."""
    synchronize(device)
    one = _warm_up(call, device, effort)
    num_calls = min(MOST_CALLS, max(1, math.ceil(REPETITION_SECONDS / max(one, 1e-9))))
    affordable = max(1, int(MOST_SECONDS / max(one * num_calls, 1e-9)))
    repetitions = max(1, min(effort.repetitions, affordable))
    if device.type == "cuda":
        return _by_events(call, num_calls, repetitions, device)
    clock = host_clock(device)
    return statistics.median(_by_clock(call, num_calls, clock) for _ in range(repetitions))


def host_clock(device: torch.device) -> Clock:
    """For what returns when it is done."""
    return time.thread_time if device.type == "cpu" and torch.get_num_threads() == 1 else time.perf_counter


def _warm_up(call: Call, device: torch.device, effort: Effort) -> float:
    """Seconds of the last call, the quickest guess at how many fit a repetition."""
    began = time.perf_counter()
    for _ in range(max(1, effort.warmup)):
        before = time.perf_counter()
        call()
        synchronize(device)
        one = time.perf_counter() - before
        if time.perf_counter() - began > MOST_SECONDS:
            break
    return one


def _by_clock(call: Call, num_calls: int, clock: Clock) -> float:
    before = clock()
    for _ in range(num_calls):
        call()
    return (clock() - before) / num_calls


def _by_events(call: Call, num_calls: int, repetitions: int, device: torch.device) -> float:
    """The device's own clock: events before and after each repetition, read once all are done."""
    with torch.cuda.device(device):
        events = [
            (torch.Event("cuda", enable_timing=True), torch.Event("cuda", enable_timing=True))
            for _ in range(repetitions)
        ]
        for before, after in events:
            before.record()
            for _ in range(num_calls):
                call()
            after.record()
        torch.cuda.synchronize(device)
    milliseconds = statistics.median(float(before.elapsed_time(after)) for before, after in events)
    return milliseconds * 1e-3 / num_calls


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
