"""How much of the devices' memory can matter: what no stage of a better solution needs tells no devices apart."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from planner.partition.compute_reach import furthest_end
from planner.partition.positions import allowed_positions
from planner.partition.problem import PartitionProblem
from planner.partition.segments import Segments


def without_idle_memory(problem: PartitionProblem, limit: float = np.inf) -> PartitionProblem:
    """Each device with at most the bytes that the largest stage of a bottleneck up to `limit` needs.

    The same contiguous layouts up to the limit fit. O(positions x row) for a finite limit.
    """
    most = everything_bytes(problem)
    if np.isfinite(limit) and np.unique(np.minimum(problem.device_memory_bytes, most)).size > 1:
        most = min(most, _largest_segment_bytes(problem, limit))
    return replace(problem, device_memory_bytes=np.minimum(problem.device_memory_bytes, most))


def everything_bytes(problem: PartitionProblem) -> int:
    """Every state, every storage and every value at once, and every value buffered; in training all of them saved."""
    values = int(problem.value_bytes.sum())
    roots, states = int(problem.root_bytes.sum()), int(problem.state_bytes.sum())
    needed = states + roots + values + problem.microbatches_in_flight * values
    if problem.training is not None:
        needed += int(problem.state_gradient_bytes.sum() + problem.state_optimizer_bytes.sum())
        needed += problem.training.microbatches * (roots + values)
    return needed


def _largest_segment_bytes(problem: PartitionProblem, limit: float) -> int:
    segments, largest = Segments(problem), 0.0
    positions = allowed_positions(problem)
    furthest = furthest_end(problem, limit)
    for start in positions[:-1].tolist():
        ends = positions[np.searchsorted(positions, start, side="right") :]
        ends = ends[: np.searchsorted(ends, furthest[start], side="right")]
        if ends.size:
            largest = max(largest, float(segments.row(start, int(ends[-1])).peak_bytes[ends - start - 1].max()))
    return int(largest)
