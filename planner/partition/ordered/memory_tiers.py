"""Devices of unequal memory in few tiers, where telling them all apart is too much.

With each device rounded down to the least of its tier, what fits fits in truth; rounded up to the most, nothing that
fits is left out. A search over either is a search over fewer classes of devices: one gives a plan, the other a bound.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from planner.partition.ordered.device_classes import DeviceClasses, device_classes
from planner.partition.problem import Integers, PartitionProblem


def in_memory_tiers(
    problem: PartitionProblem, affordable: Callable[[PartitionProblem], bool], *, round_up: bool
) -> PartitionProblem | None:
    """As many tiers as are affordable, among devices alike in all else; None where one is too many."""
    alike = device_classes(replace(problem, device_memory_bytes=np.zeros(problem.num_devices, dtype=np.int64)))
    best: PartitionProblem | None = None
    for num_tiers in range(1, problem.num_devices + 1):
        memory = _rounded(problem, alike, num_tiers, round_up=round_up)
        tiered = replace(problem, device_memory_bytes=memory)
        if not affordable(tiered):
            return best
        best = tiered
    return best


def _rounded(problem: PartitionProblem, alike: DeviceClasses, num_tiers: int, *, round_up: bool) -> Integers:
    memory = problem.device_memory_bytes.copy()
    for members in alike.members:
        by_memory = sorted(members, key=lambda device: (memory[device], device))
        for tier in np.array_split(np.array(by_memory), min(num_tiers, len(by_memory))):
            memory[tier] = memory[tier].max() if round_up else memory[tier].min()
    return memory
