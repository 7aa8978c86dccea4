"""How far a stage can reach by its compute alone, if it may take no longer than a limit."""

from __future__ import annotations

import numpy as np

from planner.partition.ordered.distinct_rows import distinct_rows
from planner.partition.problem import Integers, PartitionProblem

# Room for rounding in sums of seconds, so that no segment on the limit is left out.
LIMIT_MARGIN = 1e-9


def furthest_end(problem: PartitionProblem, limit: float) -> Integers:
    """By start: the furthest end of a stage within `limit` seconds, on the device that gets furthest."""
    furthest = np.zeros(problem.num_nodes + 1, dtype=np.int64)
    for before in distinct_rows(problem.compute_before).rows:
        ends = np.searchsorted(before, before + limit * (1 + LIMIT_MARGIN), side="right") - 1
        furthest = np.maximum(furthest, ends)
    return furthest
