"""When each pass of a training step begins, and what comes behind it, for given orders of its devices; compiled.

`sequence` holds the passes of one device after another, `begin` [d + 1] where each device's start. Linear in the passes
and the arcs.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from planner.partition.placement.compiled import compiled

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
