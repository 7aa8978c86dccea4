"""Seconds of one training step: the longest path through its passes and messages, exact for stages that are uneven.

A stage takes what enters, runs, and sends what leaves; backward it does the same with gradients. All of that occupies
its device. A message streams: its receiver may begin as soon as its sender has handed it over, if it is free, and is
done no sooner than `received` seconds later. Copies of a stage count as the slowest of them.

The loops are compiled. There `sequence` holds the passes of one device after another, `begin` [d + 1] where each
device's start. Linear in the passes and the arcs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from planner.partition.placement.compiled import compiled
from planner.partition.training.pipeline_order import Pass, Step
from planner.partition.training.step_graph import Jobs, TrainingStep, step_graph

Array = np.ndarray[Any, Any]


@compiled
def places(sequence: Array, begin: Array, before: Array, after: Array) -> None:
    """Fills in the passes just before and after each on its device; -1 where there is none."""
    for device in range(begin.size - 1):
        last = -1
        for position in range(begin[device], begin[device + 1]):
            number = sequence[position]
            before[number], after[number] = last, -1
            if last >= 0:
                after[last] = number
            last = number


@compiled
def starts(before: Array, after: Array, jobs: Jobs, start: Array, turn: Array) -> int:
    """How many passes can be run; fewer than all is a deadlock. Fills in when each begins, and a topological order."""
    num_passes = jobs.seconds.size
    missing = np.empty(num_passes, dtype=np.int64)
    count = 0
    for number in range(num_passes):
        missing[number] = jobs.arcs_into[number + 1] - jobs.arcs_into[number] + (before[number] >= 0)
        if missing[number] == 0:
            turn[count] = number
            count += 1
    at = 0
    while at < count:
        number = turn[at]
        at += 1
        begins = 0.0
        last = before[number]
        if last >= 0:
            begins = start[last] + jobs.seconds[last]
        for arc in range(jobs.arcs_into[number], jobs.arcs_into[number + 1]):
            begins = max(begins, start[jobs.into_source[arc]] + jobs.into_delay[arc])
        start[number] = begins
        for arc in range(jobs.arcs_from[number], jobs.arcs_from[number + 1]):
            target = jobs.out_target[arc]
            missing[target] -= 1
            if missing[target] == 0:
                turn[count] = target
                count += 1
        following = after[number]
        if following >= 0:
            missing[following] -= 1
            if missing[following] == 0:
                turn[count] = following
                count += 1
    return count


@compiled
def tails(after: Array, jobs: Jobs, turn: Array, tail: Array) -> None:
    """Fills in the longest way from the start of each pass to the step's end."""
    for at in range(turn.size - 1, -1, -1):
        number = turn[at]
        following = after[number]
        longest = jobs.seconds[number] + (tail[following] if following >= 0 else jobs.closing[jobs.device[number]])
        for arc in range(jobs.arcs_from[number], jobs.arcs_from[number + 1]):
            longest = max(longest, jobs.out_delay[arc] + tail[jobs.out_target[arc]])
        tail[number] = longest


def step_seconds(step: TrainingStep, orders: Mapping[int, Sequence[Step]]) -> float:
    """O(passes + microbatches x edges)."""
    split = any(one.kind is Pass.BACKWARD_INPUT for order in orders.values() for one in order)
    graph = step_graph(step, split=split)
    jobs, (sequence, begin) = graph.jobs, graph.sequence(orders)
    before, after, turn = (np.empty(graph.num_passes, dtype=np.int64) for _ in range(3))
    start = np.empty(graph.num_passes)
    places(sequence, begin, before, after)
    count = starts(before, after, jobs, start, turn)
    assert count == graph.num_passes, "a deadlock"
    ends = jobs.closing.copy()
    np.maximum.at(ends, jobs.device, start + jobs.seconds + jobs.closing[jobs.device])
    return float(ends.max())
