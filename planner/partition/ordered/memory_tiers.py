"""Memory that need not tell devices apart.

What is beyond what any plan needs, or any that is no worse than one in hand, tells none apart. Where telling all apart
is still too much, their memory comes in few tiers. With each device rounded down to the least of its tier, what fits
fits in truth; rounded up to the most, nothing that fits is left out: one gives a plan, the other a bound.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from planner.partition.ordered.hosts import Classes, hosts_of
from planner.partition.ordered.positions import LIMIT_MARGIN, crossing_bytes
from planner.partition.problem import Integers, PartitionProblem


def without_idle_memory(problem: PartitionProblem, seconds: float = np.inf) -> PartitionProblem:
    """Each device with at most the bytes that any plan over the program order needs whose stages compute for no longer
    than `seconds`: the same of these plans fit."""
    most = _most_bytes(problem, seconds)
    return replace(problem, device_memory_bytes=np.minimum(problem.device_memory_bytes, most))


def memory_is_idle(problem: PartitionProblem, seconds: float = np.inf) -> bool:
    """Whether each device holds any stage of such plans."""
    return bool(problem.device_memory_bytes.min() >= _most_bytes(problem, seconds))


def _most_bytes(problem: PartitionProblem, seconds: float) -> int:
    most = everything_bytes(problem)
    return min(most, most_bytes_within(problem, seconds)) if np.isfinite(seconds) else most


def everything_bytes(problem: PartitionProblem) -> int:
    """Every state, every storage and every value at once, and every value buffered; in training all of them saved."""
    values, roots = int(problem.value_bytes.sum()), int(problem.root_bytes.sum())
    needed = int(problem.whole_state_bytes.sum()) + roots + values + problem.microbatches_in_flight * values
    if problem.training is not None:
        needed += problem.training.microbatches * (roots + values + int(problem.node_kept_bytes.sum()))
    return needed


def most_bytes_within(problem: PartitionProblem, seconds: float) -> int:
    """No segment of the program order that computes for no longer, where it runs fastest, needs more: the states and
    storages of each of its nodes, though others of the segment have them too, and all that passes its ends."""
    n, at_once = problem.num_nodes, problem.microbatches_in_flight
    saved = problem.training.microbatches + 1 if problem.training is not None else 0
    own = saved * problem.node_kept_bytes.astype(np.int64) if saved else np.zeros(n, dtype=np.int64)
    np.add.at(own, np.minimum(problem.use_node, n - 1), problem.whole_state_bytes[problem.use_state])
    made = problem.root_producer >= 0
    np.add.at(own, problem.root_producer[made], (1 + saved) * problem.root_bytes[made])
    until = np.concatenate([[0.0], np.cumsum(problem.work_seconds.min(axis=0))])
    end = np.searchsorted(until, until[:-1] + seconds * (1 + LIMIT_MARGIN), side="right") - 1
    held = np.concatenate([[0], np.cumsum(own)])
    passing = crossing_bytes(problem)
    needed = held[end] - held[:-1] + (1 + saved + at_once) * passing[:-1]
    returned = int(problem.whole_state_bytes[problem.returned_state].sum())
    return int(needed.max()) + at_once * int(passing.max()) + returned


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
