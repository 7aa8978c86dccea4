"""How much of the devices' memory can matter: what no stage of a better solution needs tells no devices apart."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from planner.partition.ordered.largest_segment import largest_segment_bytes
from planner.partition.problem import PartitionProblem


def without_idle_memory(problem: PartitionProblem, limit: float = np.inf) -> PartitionProblem:
    """Each device with at most the bytes that the largest stage of a bottleneck up to `limit` needs.

    The same contiguous layouts up to the limit fit. What the largest needs is a little overestimated. O(n log n).
    """
    most = everything_bytes(problem)
    if np.isfinite(limit) and np.unique(np.minimum(problem.device_memory_bytes, most)).size > 1:
        most = min(most, largest_segment_bytes(problem, limit))
    return replace(problem, device_memory_bytes=np.minimum(problem.device_memory_bytes, most))


def everything_bytes(problem: PartitionProblem) -> int:
    """Every state, every storage and every value at once, and every value buffered; in training all of them saved."""
    values, roots = int(problem.value_bytes.sum()), int(problem.root_bytes.sum())
    needed = int(problem.whole_state_bytes.sum()) + roots + values + problem.microbatches_in_flight * values
    if problem.training is not None:
        needed += problem.training.microbatches * (roots + values)
    return needed
