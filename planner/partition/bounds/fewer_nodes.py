"""The problem without some of its nodes, which never costs more: a bound on it is one on the whole.

Programs with work beside a long path (keys made of an encoder's output, embeddings of a time step) have too many order
ideals to count. Without the nodes that do little work beside much they have few. What such a node passes on stands in
for what it is given: with u -> node -> w apart, the stage of u sends one of the two tensors and the stage of w receives
one. Stages may lose all of their nodes, also the first or the last one: so what the caller gives and takes is not
counted, and nothing says which link the stand-ins travel over.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from planner.partition.arcs import topological_order
from planner.partition.problem import Booleans, Floats, Integers, PartitionProblem
from planner.partition.program_orders import Bundles, least_seconds

# Rows of a table of bundles by bundles that are looked at together.
_CHUNK = 512


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FewerNodes:
    """`stands_in` [values]: for what a node that is left out passes on."""

    problem: PartitionProblem
    stands_in: Booleans


def work_beside(problem: PartitionProblem, bundles: Bundles) -> Floats:
    """[bundles] seconds of what may run before or after each; of the last node's, nothing. O(bundles^2)."""
    before = np.eye(bundles.count, dtype=np.bool_)
    for bundle in topological_order(bundles.before, bundles.after):
        for producer in bundles.before[bundle]:
            before[bundle] |= before[producer]
    seconds, beside = least_seconds(problem, bundles), np.empty(bundles.count)
    for at in range(0, bundles.count, _CHUNK):
        rows = slice(at, at + _CHUNK)
        beside[rows] = ~(before[rows] | before[:, rows].T) @ seconds
    beside[bundles.bundle_of_node[-1]] = 0.0
    return beside


def least_work_beside_most(
    problem: PartitionProblem, bundles: Bundles, beside: Floats, share: float, beside_much: float = np.inf
) -> Booleans:
    """[bundles] those to leave out: at most `share` of the work, and of that what does least for the work `beside` it
    [bundles]; and first all beside which is more than `beside_much` of the work."""
    seconds = least_seconds(problem, bundles)
    left_out: Booleans = beside > beside_much * seconds.sum()
    parallel = np.flatnonzero((beside > 0) & ~left_out)
    ranked = parallel[np.argsort(seconds[parallel] / beside[parallel], kind="stable")]
    left_out[ranked[np.cumsum(seconds[ranked]) <= share * seconds.sum()]] = True
    return left_out


def without_nodes(problem: PartitionProblem, left_out: Booleans) -> FewerNodes:
    """`left_out` [nodes]: of a bundle all or none, and not the last one. O(nodes x readers)."""
    tensors = _Tensors(problem, left_out)
    for node in np.flatnonzero(left_out)[::-1].tolist():
        tensors.leave_out(node)
    rest = np.flatnonzero(~left_out)
    place = np.full(problem.num_nodes, -1, dtype=np.int64)
    place[rest] = np.arange(rest.size)
    values = [value for value, readers in enumerate(tensors.readers) if readers and place[tensors.producer[value]] >= 0]
    producer = place[tensors.producer[values]]
    sizes = np.array([tensors.sizes[value] for value in values], dtype=np.int64)
    used = ~left_out[problem.use_node]
    nothing = np.zeros(0, dtype=np.int64)
    smaller = problem.with_nodes(
        rest,
        value_bytes=sizes,
        value_producer=producer,
        value_root=np.arange(sizes.size),
        value_returned=np.zeros(sizes.size, dtype=np.bool_),
        root_bytes=np.where([tensors.has_storage(value) for value in values], sizes, 0),
        root_producer=producer,
        read_value=np.repeat(np.arange(sizes.size), [len(tensors.readers[value]) for value in values]),
        read_node=place[[reader for value in values for reader in sorted(tensors.readers[value])]],
        use_state=problem.use_state[used],
        use_node=place[problem.use_node[used]],
        use_is_return=problem.use_is_return[used],
        returned_state=nothing,
        shown_root=nothing,
        shown_node=nothing,
        cut_allowed=np.append(np.logical_or.reduceat(problem.cut_allowed[:-1], np.append(0, rest[:-1] + 1)), True),
        value_source=nothing,
        # What comes back for a stand-in is not known.
        value_gradient_bytes=np.array([tensors.gradient_bytes(value) for value in values], dtype=np.int64),
    )
    return FewerNodes(
        problem=smaller, stands_in=np.array([tensors.stands_in[value] for value in values], dtype=np.bool_)
    )


class _Tensors:
    """Values, and behind them for each node one of no bytes that only says what has to run after it."""

    def __init__(self, problem: PartitionProblem, left_out: Booleans) -> None:
        n, num_values, made = problem.num_nodes, problem.num_values, problem.value_producer >= 0
        self.producer: Integers = np.append(np.where(made, problem.value_producer, 0), np.arange(n))
        self.sizes = [*problem.value_bytes.tolist(), *[0] * n]
        self.readers: list[set[int]] = [set() for _ in self.sizes]
        self.stands_in = [False] * len(self.sizes)
        self._problem, self._left_out = problem, left_out
        self._read_by: list[set[int]] = [set() for _ in range(n)]
        self._made_by = [[num_values + node] for node in range(n)]
        for value, node in zip(problem.read_value.tolist(), problem.read_node.tolist(), strict=True):
            if made[value]:
                self.readers[value].add(node)
                self._read_by[node].add(value)
        for value in np.flatnonzero(made).tolist():
            self._made_by[problem.value_producer[value]].append(value)

    def has_storage(self, value: int) -> bool:
        """Of its own, and not as a view of another's."""
        if value >= self._problem.num_values:
            return False
        return bool(self._problem.root_producer[self._problem.value_root[value]] == self.producer[value])

    def gradient_bytes(self, value: int) -> int:
        if value >= self._problem.num_values or self.stands_in[value]:
            return 0
        return int(self._problem.value_gradient_bytes[value])

    def leave_out(self, node: int) -> None:
        """All nodes behind it that are to be left out have been."""
        inputs, outputs = sorted(self._read_by[node]), [value for value in self._made_by[node] if self.readers[value]]
        for value in inputs:
            self.readers[value].discard(node)
        if not (inputs and outputs):
            return
        behind = set[int]().union(*(self.readers[value] for value in outputs))
        for value in inputs:
            self._read_also(self._problem.num_values + int(self.producer[value]), behind)
        largest = max(outputs, key=lambda value: self.sizes[value])
        # What readers that stay need is not made smaller.
        able = [value for value in inputs if self.sizes[value] <= self.sizes[largest] or not self._is_needed(value)]
        if able:
            stand_in = max(able, key=lambda value: min(self.sizes[value], self.sizes[largest]))
            self.sizes[stand_in] = min(self.sizes[stand_in], self.sizes[largest])
            self.stands_in[stand_in] = True
            self._read_also(stand_in, self.readers[largest])

    def _is_needed(self, value: int) -> bool:
        return not all(self._left_out[reader] for reader in self.readers[value])

    def _read_also(self, value: int, nodes: set[int]) -> None:
        self.readers[value] |= nodes
        for node in nodes:
            self._read_by[node].add(value)
