"""Seconds of one training step: the longest path through its passes and messages, exact for stages that are uneven.

A stage takes what enters, runs, and sends what leaves; backward it does the same with gradients. All of that occupies
its device. A message streams: its receiver may begin as soon as its sender has, if it is free, and is done no sooner
than `received` seconds later. Copies of a stage count as the slowest of them.

The loops are compiled. There `sequence` holds the passes of one device after another, `begin` [d + 1] where each
device's start. Linear in the passes and the arcs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from planner.partition.placement.compiled import compiled
from planner.partition.training.pipeline_order import Pass, Step
from planner.partition.training.step_graph import TrainingStep, step_graph

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
def starts(
    before: Array, after: Array, seconds: Array, arcs_into: Array, into_source: Array, into_delay: Array,
    arcs_from: Array, out_target: Array, start: Array, turn: Array,
) -> int:  # fmt: skip
    """How many passes can be run; fewer than all is a deadlock. Fills in when each begins, and a topological order."""
    num_passes = seconds.size
    missing = np.empty(num_passes, dtype=np.int64)
    count = 0
    for number in range(num_passes):
        missing[number] = arcs_into[number + 1] - arcs_into[number] + (before[number] >= 0)
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
            begins = start[last] + seconds[last]
        for arc in range(arcs_into[number], arcs_into[number + 1]):
            begins = max(begins, start[into_source[arc]] + into_delay[arc])
        start[number] = begins
        for arc in range(arcs_from[number], arcs_from[number + 1]):
            target = out_target[arc]
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
def tails(
    after: Array, device: Array, closing: Array, seconds: Array, arcs_from: Array, out_target: Array, out_delay: Array,
    turn: Array, tail: Array,
) -> None:  # fmt: skip
    """Fills in the longest way from the start of each pass to the step's end."""
    for at in range(turn.size - 1, -1, -1):
        number = turn[at]
        following = after[number]
        longest = seconds[number] + (tail[following] if following >= 0 else closing[device[number]])
        for arc in range(arcs_from[number], arcs_from[number + 1]):
            longest = max(longest, out_delay[arc] + tail[out_target[arc]])
        tail[number] = longest


def step_seconds(step: TrainingStep, orders: Mapping[int, Sequence[Step]]) -> float:
    """O(passes + microbatches x edges)."""
    split = any(one.kind is Pass.BACKWARD_INPUT for order in orders.values() for one in order)
    graph = step_graph(step, split=split)
    sequence, begin = graph.sequence(orders)
    before, after, turn = (np.empty(graph.num_passes, dtype=np.int64) for _ in range(3))
    start = np.empty(graph.num_passes)
    places(sequence, begin, before, after)
    count = starts(
        before, after, graph.seconds, graph.arcs_into, graph.into.source, graph.into.delay, graph.arcs_from,
        graph.out.target, start, turn,
    )  # fmt: skip
    assert count == graph.num_passes, "a deadlock"
    ends = graph.closing.copy()
    np.maximum.at(ends, graph.device, start + graph.seconds + graph.closing[graph.device])
    return float(ends.max())
