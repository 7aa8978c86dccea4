"""How often a value must be sent at least, if no stage may take longer than a limit.

A direct send goes to each stage that reads the value. A stage that starts at one reader can reach only so far within
the limit, so readers further on are in another stage: the fewest stages that hold all readers are found greedily.
"""

from __future__ import annotations

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
        counts = _fewest_stages(problem, furthest_end(problem, limit))
        if not counts:
            return
        dearest = sorted(counts, key=lambda value: (-counts[value].max() * problem.value_bytes[value], value))
        values = sorted(dearest[:MAX_VALUES], key=lambda value: (-int(problem.value_producer[value]), value))
        self._producers = -problem.value_producer[values]
        again = np.array([counts[value] for value in values]) - 1.0
        # A value is sent only from segments that hold its producer, so its row is empty up to there.
        sizes = problem.value_bytes[values].astype(np.float64)
        self._bytes = np.concatenate([np.zeros((1, n + 1)), np.cumsum(again * sizes[:, None], axis=0)])
        self._edges = np.concatenate([np.zeros((1, n + 1)), np.maximum.accumulate(again, axis=0)])

    def of(self, start: int, ends: Integers) -> tuple[Floats, Floats]:
        """(bytes, edges) for segments [start, end). The graph's inputs are stage 0's to hand on."""
        made = int(np.searchsorted(self._producers, 1 if start == 0 else -start, side="right"))
        return self._bytes[made, ends], self._edges[made, ends]


def _fewest_stages(problem: PartitionProblem, ends: Integers) -> dict[int, Floats]:
    """Value to [n + 1]: the fewest stages that hold its readers from each position on; at least 1, values needing 2."""
    n = problem.num_nodes
    returned = np.flatnonzero(problem.value_returned)
    values = np.concatenate([problem.read_value, returned])
    nodes = np.concatenate([problem.read_node, np.full(returned.size, n - 1)])
    order = np.lexsort((nodes, values))
    values, nodes = values[order], nodes[order]
    found: dict[int, Floats] = {}
    first = np.flatnonzero(np.diff(values, prepend=-1))
    for start, end in zip(first.tolist(), [*first[1:].tolist(), values.size], strict=True):
        readers = nodes[start:end]
        if end - start == 0 or ends[readers[0]] > readers[-1]:
            continue
        following = np.searchsorted(readers, ends[readers])
        count = np.zeros(readers.size + 1)
        for index in range(readers.size - 1, -1, -1):
            count[index] = 1 + count[max(int(following[index]), index + 1)]
        value = int(values[start])
        by_position = np.maximum(count[np.searchsorted(readers, np.arange(n + 1))], 1.0)
        by_position[: max(0, int(problem.value_producer[value]) + 1)] = 1.0
        found[value] = by_position
    return found
