"""How often a value must be sent at least, if no stage may take longer than a limit.

A direct send goes to each stage that reads the value. A stage that starts at one reader can reach only so far within
the limit, so readers further on are in another stage: the fewest stages that hold all readers are found greedily.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from planner.partition.compute_reach import furthest_end
from planner.partition.problem import Floats, Integers, PartitionProblem

# Leaving some out keeps the bound valid.
MAX_VALUES = 200


class RepeatedSends:
    """Bytes, and edges, beyond the first send of each value that a segment makes. A lower bound below the limit."""

    def __init__(self, problem: PartitionProblem, limit: float) -> None:
        n = problem.num_nodes
        self._producers: Integers = np.zeros(0, dtype=np.int64)
        self._bytes: Floats = np.zeros((1, n + 1))
        self._edges: Floats = np.zeros((1, n + 1))
        if problem.relay or not np.isfinite(limit):
            return
        spread = _spread_values(problem, furthest_end(problem, limit))
        if not spread:
            return
        dearest = sorted(spread, key=lambda one: (-one.num_stages[0] * problem.value_bytes[one.value], one.value))
        chosen = sorted(dearest[:MAX_VALUES], key=lambda one: (-int(problem.value_producer[one.value]), one.value))
        values = [one.value for one in chosen]
        self._producers = -problem.value_producer[values]
        again = np.array([_by_position(problem, one) for one in chosen]) - 1.0
        # A value is sent only from segments that hold its producer, so its row is empty up to there.
        sizes = problem.value_bytes[values].astype(np.float64)
        self._bytes = np.concatenate([np.zeros((1, n + 1)), np.cumsum(again * sizes[:, None], axis=0)])
        self._edges = np.concatenate([np.zeros((1, n + 1)), np.maximum.accumulate(again, axis=0)])

    def of(self, start: int, ends: Integers) -> tuple[Floats, Floats]:
        """(bytes, edges) for segments [start, end). The graph's inputs are stage 0's to hand on."""
        made = int(np.searchsorted(self._producers, 1 if start == 0 else -start, side="right"))
        return self._bytes[made, ends], self._edges[made, ends]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Spread:
    """A value whose readers no one stage can hold: `num_stages[k]` hold those from the k-th on, 0 after the last."""

    value: int
    readers: Integers
    num_stages: Floats


def _spread_values(problem: PartitionProblem, furthest: Integers) -> list[_Spread]:
    returned = np.flatnonzero(problem.value_returned)
    values = np.concatenate([problem.read_value, returned])
    nodes = np.concatenate([problem.read_node, np.full(returned.size, problem.num_nodes - 1)])
    order = np.lexsort((nodes, values))
    values, nodes = values[order], nodes[order]
    found: list[_Spread] = []
    first = np.flatnonzero(np.diff(values, prepend=-1))
    for start, end in pairwise([*first.tolist(), values.size]):
        readers = nodes[start:end]
        if furthest[readers[0]] <= readers[-1]:
            count = _fewest_stages(readers, furthest)
            found.append(_Spread(value=int(values[start]), readers=readers, num_stages=count))
    return found


def _fewest_stages(readers: Integers, furthest: Integers) -> Floats:
    following = np.searchsorted(readers, furthest[readers])
    count = np.zeros(readers.size + 1)
    for index in range(readers.size - 1, -1, -1):
        count[index] = 1 + count[max(int(following[index]), index + 1)]
    return count


def _by_position(problem: PartitionProblem, spread: _Spread) -> Floats:
    """[n + 1]: stages that the value is sent to at least from a cut at each position; 1 where that says nothing."""
    positions = np.arange(problem.num_nodes + 1)
    count = np.maximum(spread.num_stages[np.searchsorted(spread.readers, positions)], 1.0)
    count[: max(0, int(problem.value_producer[spread.value]) + 1)] = 1.0
    return count
