"""Orders of passes by priority: whenever a device may begin something, the pass of the highest priority goes first.

Giffler and Thompson's construction (1960), which makes parametrised active schedules (Bierwirth and Mattfeld 1999): a
device waits for a pass that is not there yet only as far as `patience` allows.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from planner.partition.placement.compiled import compiled
from planner.partition.training.step_graph import Jobs

Array = np.ndarray[Any, Any]


@compiled
def dispatch(jobs: Jobs, priority: Array, patience: float) -> tuple[Array, Array]:
    """(the passes of one device after another, where each device's begin [d + 1]).

    Patience 0: no device waits while it could run something; 1: any pass goes
    first that can begin before another would be done. O(passes x passes that are ready).
    """
    num_passes, num_devices = jobs.seconds.size, jobs.closing.size
    free = np.zeros(num_devices)
    ready_at = np.zeros(num_passes)
    missing = jobs.arcs_into[1:] - jobs.arcs_into[:-1]
    ready = np.empty(num_passes, dtype=np.int64)
    num_ready = 0
    for number in range(num_passes):
        if missing[number] == 0:
            ready[num_ready] = number
            num_ready += 1
    done = np.empty(num_passes, dtype=np.int64)
    for turn in range(num_passes):
        first_end, first_start, chosen_device = np.inf, np.inf, -1
        for at in range(num_ready):
            number = ready[at]
            begins = max(free[jobs.device[number]], ready_at[number])
            ends = begins + jobs.seconds[number]
            if ends < first_end or (ends == first_end and begins < first_start):
                first_end, first_start, chosen_device = ends, begins, jobs.device[number]
        for at in range(num_ready):
            number = ready[at]
            if jobs.device[number] == chosen_device:
                first_start = min(first_start, max(free[chosen_device], ready_at[number]))
        limit = first_start + patience * (first_end - first_start)
        best, best_at = -1, -1
        for at in range(num_ready):
            number = ready[at]
            if jobs.device[number] != chosen_device or max(free[chosen_device], ready_at[number]) > limit:
                continue
            if best < 0 or priority[number] > priority[best] or (priority[number] == priority[best] and number < best):
                best, best_at = number, at
        begins = max(free[chosen_device], ready_at[best])
        free[chosen_device] = begins + jobs.seconds[best]
        done[turn] = best
        num_ready -= 1
        ready[best_at] = ready[num_ready]
        for arc in range(jobs.arcs_from[best], jobs.arcs_from[best + 1]):
            target = jobs.out_target[arc]
            ready_at[target] = max(ready_at[target], begins + jobs.out_delay[arc])
            missing[target] -= 1
            if missing[target] == 0:
                ready[num_ready] = target
                num_ready += 1
    begin = np.zeros(num_devices + 1, dtype=np.int64)
    for number in range(num_passes):
        begin[jobs.device[number] + 1] += 1
    begin = np.cumsum(begin)
    place = begin[:-1].copy()
    sequence = np.empty(num_passes, dtype=np.int64)
    for turn in range(num_passes):
        owner = jobs.device[done[turn]]
        sequence[place[owner]] = done[turn]
        place[owner] += 1
    return sequence, begin
