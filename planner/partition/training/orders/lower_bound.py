"""What no order of a step's passes undercuts.

Of each pass: when its arcs let it begin at the earliest, and what they put behind it. Of each device: the least in
which it can do its passes between these, were it free to interrupt them (Jackson's preemptive schedule; Carlier 1982).
"""

from __future__ import annotations

from heapq import heappop, heappush
from typing import Any

import numpy as np

from planner.partition.placement.compiled import compiled
from planner.partition.problem import Floats
from planner.partition.training.step_graph import StepGraph
from planner.partition.training.step_time import starts, tails

Array = np.ndarray[Any, Any]


def arc_bounds(graph: StepGraph) -> tuple[Floats, Floats]:
    """[p] when each pass begins at the earliest, and the longest way from there to the step's end, by arcs alone."""
    nobody = np.full(graph.num_passes, -1, dtype=np.int64)
    start, tail = np.empty(graph.num_passes), np.empty(graph.num_passes)
    turn = np.empty(graph.num_passes, dtype=np.int64)
    count = starts(nobody, nobody, graph.jobs, start, turn)
    assert count == graph.num_passes, "arcs in a circle"
    tails(nobody, graph.jobs, turn, tail)
    return start, tail


def lower_bound(graph: StepGraph) -> float:
    """O(arcs + passes x passes of a device) at most."""
    start, tail = arc_bounds(graph)
    seconds, device = graph.jobs.seconds, graph.jobs.device
    behind = tail - seconds
    of_devices = [
        preemptive(start[own], seconds[own], behind[own])
        for own in (np.flatnonzero(device == rank) for rank in range(len(graph.device_ids)))
        if own.size
    ]
    return float(max((start + tail).max(), *of_devices))


@compiled
def preemptive(head: Array, seconds: Array, tail: Array) -> float:
    """Jackson's preemptive schedule: of the jobs that are there, always that with the longest tail. O(n log n)."""
    order = np.argsort(head)
    left = seconds[order]
    waiting = [(-tail[order[0]], 0)]
    now, arrived, longest = head[order[0]], 1, 0.0
    while waiting or arrived < order.size:
        if not waiting:
            now = head[order[arrived]]
        while arrived < order.size and head[order[arrived]] <= now:
            heappush(waiting, (-tail[order[arrived]], arrived))
            arrived += 1
        behind, job = waiting[0]
        span = left[job]
        if arrived < order.size:
            span = min(span, head[order[arrived]] - now)
        now += span
        left[job] -= span
        if left[job] <= 0.0:
            heappop(waiting)
            longest = max(longest, now - behind)
    return longest
