"""Memory that need not tell devices apart.

What is beyond what any plan needs tells none apart. Where telling all apart is still too much, their memory comes in
few tiers. With each device rounded down to the least of its tier, what fits fits in truth; rounded up to the most,
nothing that fits is left out: one gives a plan, the other a bound.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from planner.partition.ordered.hosts import Classes, hosts_of
from planner.partition.problem import Integers, PartitionProblem


def without_idle_memory(problem: PartitionProblem) -> PartitionProblem:
    """Each device with at most the bytes that the whole program needs: the same plans fit."""
    return replace(problem, device_memory_bytes=np.minimum(problem.device_memory_bytes, everything_bytes(problem)))


def everything_bytes(problem: PartitionProblem) -> int:
    """Every state, every storage and every value at once, and every value buffered; in training all of them saved."""
    values, roots = int(problem.value_bytes.sum()), int(problem.root_bytes.sum())
    needed = int(problem.whole_state_bytes.sum()) + roots + values + problem.microbatches_in_flight * values
    if problem.training is not None:
        needed += problem.training.microbatches * (roots + values + int(problem.node_kept_bytes.sum()))
    return needed


def in_memory_tiers(
    problem: PartitionProblem, affordable: Callable[[PartitionProblem], bool], *, round_up: bool
) -> PartitionProblem | None:
    """As many tiers as are affordable, among devices alike in all else; None where one is too many."""
    alike = hosts_of(replace(problem, device_memory_bytes=np.zeros(problem.num_devices, dtype=np.int64))).classes
    best: PartitionProblem | None = None
    for num_tiers in range(1, problem.num_devices + 1):
        memory = _rounded(problem, alike, num_tiers, round_up=round_up)
        tiered = replace(problem, device_memory_bytes=memory)
        if not affordable(tiered):
            return best
        best = tiered
    return best


def _rounded(problem: PartitionProblem, alike: Classes, num_tiers: int, *, round_up: bool) -> Integers:
    memory = problem.device_memory_bytes.copy()
    for members in alike:
        by_memory = sorted(members, key=lambda device: (memory[device], device))
        for tier in np.array_split(np.array(by_memory), min(num_tiers, len(by_memory))):
            memory[tier] = memory[tier].max() if round_up else memory[tier].min()
    return memory
