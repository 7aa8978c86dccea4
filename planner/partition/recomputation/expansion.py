"""The problem of stages that run nodes of earlier stages again, as one in which every node runs once.

What `planner.graph.expansion` does to a graph, in numbers: each such node stands once more, right after itself, with
values and storage of its own, and the stage's nodes read those.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from planner.partition.assignment import Assignment
from planner.partition.problem import NO_SOURCE, Booleans, Integers, PartitionProblem, moved


def expanded(problem: PartitionProblem, assignment: Assignment) -> tuple[PartitionProblem, Assignment]:
    """Both as they are where nothing runs again. O((nodes + values + reads) log copies), and devices x nodes."""
    copies = _copies(assignment.recomputed)
    if not copies.count:
        return problem, assignment
    stage_of_node = np.asarray(assignment.stage_of_node, dtype=np.int64)
    stages, n = assignment.num_stages, problem.num_nodes
    # Where nodes go, what the program returns (n) included, and where their copies go.
    place = np.arange(n + 1) + np.searchsorted(copies.nodes, np.arange(n + 1))
    copy_place = copies.nodes + 1 + np.arange(copies.count)
    origin, new_stages = np.empty(n + copies.count, dtype=np.int64), np.empty(n + copies.count, dtype=np.int64)
    origin[place[:n]], origin[copy_place] = np.arange(n), copies.nodes
    new_stages[place[:n]], new_stages[copy_place] = stage_of_node, copies.stages

    values = _Twins(problem.value_producer, copies, stages)
    roots = _Twins(problem.root_producer, copies, stages)
    sources, root_of_value = _storage(problem, values, roots, stage_of_node, copies)
    reads = _Uses(problem.read_node, copies)
    readers = np.concatenate([stage_of_node[problem.read_node], copies.stages[reads.copy]])
    uses = _Uses(problem.use_node, copies)
    shown_uses = _Uses(problem.shown_node, copies)
    is_copy = np.zeros(origin.size, dtype=np.bool_)
    is_copy[copy_place] = True
    wider = problem.with_nodes(
        origin,
        compute_seconds=np.where(is_copy, problem.pass_seconds[:, origin], problem.compute_seconds[:, origin]),
        delivery_seconds=np.where(is_copy, 0.0, problem.delivery_seconds[:, origin]),
        value_bytes=values.with_twins(problem.value_bytes),
        value_producer=np.concatenate([moved(problem.value_producer, place), copy_place[values.copy]]),
        value_root=root_of_value,
        value_source=sources,
        value_returned=np.concatenate([problem.value_returned, np.zeros(values.copy.size, dtype=np.bool_)]),
        root_bytes=roots.with_twins(problem.root_bytes),
        root_producer=np.concatenate([moved(problem.root_producer, place), copy_place[roots.copy]]),
        read_value=values.seen_by(reads.with_copies(problem.read_value), readers),
        read_node=np.concatenate([place[problem.read_node], copy_place[reads.copy]]),
        use_state=uses.with_copies(problem.use_state),
        use_is_return=np.concatenate([problem.use_is_return, np.zeros(uses.copy.size, dtype=np.bool_)]),
        use_node=np.concatenate([place[problem.use_node], copy_place[uses.copy]]),
        shown_root=shown_uses.with_copies(problem.shown_root),
        shown_node=np.concatenate([place[problem.shown_node], copy_place[shown_uses.copy]]),
        cut_allowed=_cut_allowed(problem, place, copy_place),
        node_group=np.where(is_copy, -1, problem.node_group[origin]),
        value_gradient_bytes=values.with_twins(problem.value_gradient_bytes),
        node_recomputable=problem.node_recomputable[origin] & ~is_copy,
    )
    return wider, replace(assignment, stage_of_node=tuple(new_stages.tolist()), recomputed=())


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Copies:
    """[c] what runs again, and in which stage; by node, then stage."""

    nodes: Integers
    stages: Integers

    @property
    def count(self) -> int:
        return int(self.nodes.size)


def _copies(recomputed: Sequence[Sequence[int]]) -> _Copies:
    pairs = sorted((node, stage) for stage, nodes in enumerate(recomputed) for node in nodes)
    nodes, stages = np.array(pairs, dtype=np.int64).reshape(-1, 2).T
    return _Copies(nodes=nodes, stages=stages)


class _Twins:
    """What copied nodes make, values or storage, made again: `original` of each twin, and the `copy` that makes it."""

    def __init__(self, producer: Integers, copies: _Copies, num_stages: int) -> None:
        self._count, self._num_stages = producer.size, num_stages
        self.copy, self.original = _by_copy(producer, copies)
        keys = self.original * num_stages + copies.stages[self.copy]
        self._order = np.argsort(keys)
        self._keys = keys[self._order]

    def with_twins(self, content: Integers) -> Integers:
        return np.concatenate([content, content[self.original]])

    def seen_by(self, made: Integers, stages: Integers) -> Integers:
        """For each pair, the stage's own twin if it has one."""
        if not self._keys.size:
            return made
        keys = made * self._num_stages + stages
        at = np.minimum(np.searchsorted(self._keys, keys), self._keys.size - 1)
        return np.where(self._keys[at] == keys, self._count + self._order[at], made)


class _Uses:
    """What copied nodes do once more: for each further use, the `copy` that has it."""

    def __init__(self, user: Integers, copies: _Copies) -> None:
        self.copy, self._original = _by_copy(user, copies)

    def with_copies(self, content: Integers) -> Integers:
        return np.concatenate([content, content[self._original]])


def _storage(
    problem: PartitionProblem, values: _Twins, roots: _Twins, stage_of_node: Integers, copies: _Copies
) -> tuple[Integers, Integers]:
    """(source, root) of each value and twin: a view shows what its own stage sees of its source."""
    stages = np.where(problem.value_producer >= 0, stage_of_node[problem.value_producer], 0)
    stages = np.concatenate([stages, copies.stages[values.copy]])
    source = values.with_twins(problem.value_source)
    shows = source != NO_SOURCE
    source[shows] = values.seen_by(source[shows], stages[shows])
    first = np.where(shows, source, np.arange(source.size))
    while (first[first] != first).any():
        first = first[first]
    own = roots.seen_by(values.with_twins(problem.value_root), stages)
    return source, own[first]


def _by_copy(node_of: Integers, copies: _Copies) -> tuple[Integers, Integers]:
    """(copy, index into `node_of`) for every pair of one node."""
    order = np.argsort(node_of, kind="stable")
    ordered = node_of[order]
    first = np.searchsorted(ordered, copies.nodes, side="left")
    counts = np.searchsorted(ordered, copies.nodes, side="right") - first
    copy = np.repeat(np.arange(copies.count), counts)
    within = np.arange(copy.size) - np.repeat(np.cumsum(counts) - counts, counts)
    return copy, order[first[copy] + within]


def _cut_allowed(problem: PartitionProblem, place: Integers, copy_place: Integers) -> Booleans:
    """Before a copy as before what follows it."""
    allowed = np.zeros(problem.num_nodes + copy_place.size + 1, dtype=np.bool_)
    allowed[place] = problem.cut_allowed
    following = np.searchsorted(place, copy_place)
    allowed[copy_place] = problem.cut_allowed[following]
    return allowed
