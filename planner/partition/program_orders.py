"""Other orders in which the program could run: what a cut of the program order cannot part, a cut of another may."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from planner.partition.arcs import after_of_arcs, components, distinct_arcs, least_by_turn
from planner.partition.assignment import Assignment
from planner.partition.problem import Floats, Integers, PartitionProblem, moved

# Of a device's share of the work. Of the benchmark's experts, all but what multiplies matrices.
_CHEAP = 0.01


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Bundles:
    """What stays together: the nodes of a group, and of a cycle of groups. Numbered by their first node.

    `members` ascend. `before` and `after` are the distinct neighbours of each in the DAG that they form.
    """

    bundle_of_node: Integers
    members: tuple[tuple[int, ...], ...]
    before: tuple[tuple[int, ...], ...]
    after: tuple[tuple[int, ...], ...]

    @property
    def count(self) -> int:
        return len(self.members)

    def assignment(self, stage_of_bundle: Sequence[int] | Integers, device_of_stage: Sequence[int]) -> Assignment:
        stages = np.asarray(stage_of_bundle, dtype=np.int64)[self.bundle_of_node]
        return Assignment(stage_of_node=tuple(stages.tolist()), device_of_stage=tuple(device_of_stage))


def least_seconds(problem: PartitionProblem, bundles: Bundles) -> Floats:
    """[bundles] of work, each node's where it runs fastest."""
    return np.bincount(bundles.bundle_of_node, problem.work_seconds.min(axis=0), bundles.count).astype(np.float64)


def bundles_of(problem: PartitionProblem) -> Bundles:
    """Linear but for sorting. A group with the last node runs last, with the caller: see no_cut_groups."""
    n = problem.num_nodes
    own = np.arange(n)
    grouped = problem.node_group >= 0
    first = np.full(int(problem.node_group.max(initial=-1)) + 1, n, dtype=np.int64)
    np.minimum.at(first, problem.node_group[grouped], own[grouped])
    own[grouped] = first[problem.node_group[grouped]]
    makers, readers = problem.node_arcs
    tails, heads = own[makers], own[readers]
    if grouped[-1]:
        tails, heads = np.append(tails, own), np.append(heads, np.full(n, own[-1]))
    tails, heads = distinct_arcs(tails, heads, n)
    component = components(tails, heads, n)[own] if grouped.any() else own
    return _bundles(component, component[tails], component[heads])


def _bundles(component: Integers, tails: Integers, heads: Integers) -> Bundles:
    names, bundle_of_node = np.unique(component, return_inverse=True)
    arcs = distinct_arcs(np.searchsorted(names, tails), np.searchsorted(names, heads), names.size)
    first, second = (ends.tolist() for ends in arcs)
    members: list[list[int]] = [[] for _ in range(names.size)]
    for node, bundle in enumerate(bundle_of_node.tolist()):
        members[bundle].append(node)
    return Bundles(
        bundle_of_node=bundle_of_node.astype(np.int64),
        members=tuple(map(tuple, members)),
        before=tuple(map(tuple, after_of_arcs(second, first, names.size))),
        after=tuple(map(tuple, after_of_arcs(first, second, names.size))),
    )


def program_orders(problem: PartitionProblem, bundles: Bundles) -> Iterator[Integers]:
    """Distinct orders of the nodes, other than the program's own. O(n log n) each."""
    told = {np.arange(problem.num_nodes).tobytes()}
    for order in _orders_of_bundles(problem, bundles):
        nodes = np.array([node for bundle in order for node in bundles.members[bundle]], dtype=np.int64)
        if nodes.tobytes() not in told:
            told.add(nodes.tobytes())
            yield nodes


def _orders_of_bundles(problem: PartitionProblem, bundles: Bundles) -> Iterator[list[int]]:
    """That of the program with cheap bundles as soon as they can run (an expert's share of the tokens, which is a
    quarter of what it is taken from), deep first both ways, from the end, where each bundle stands just before what
    first needs it, and least live bytes."""
    seconds = least_seconds(problem, bundles)
    is_cheap = (seconds <= _CHEAP * seconds.sum() / problem.num_devices).tolist()
    yield least_by_turn(bundles.after, lambda bundle, turn: (not is_cheap[bundle], bundle))
    yield least_by_turn(bundles.after, lambda bundle, turn: (-turn, bundle))
    yield least_by_turn(bundles.after, lambda bundle, turn: (-turn, -bundle))
    yield least_by_turn(bundles.before, lambda bundle, turn: (-turn, -bundle))[::-1]
    reach = _bytes_freed(problem, bundles)
    yield least_by_turn(bundles.after, lambda bundle, turn: (reach[bundle], -turn))


def _bytes_freed(problem: PartitionProblem, bundles: Bundles) -> list[float]:
    """By bundle: bytes that it makes less bytes that it reads, each read shared by its readers."""
    owner = bundles.bundle_of_node
    readers = np.bincount(problem.read_value, minlength=problem.num_values)
    share = problem.value_bytes / np.maximum(readers, 1)
    made = problem.value_producer >= 0
    grown = np.bincount(owner[problem.value_producer[made]], problem.value_bytes[made], bundles.count)
    freed = np.bincount(owner[problem.read_node], share[problem.read_value], bundles.count)
    return [float(size) for size in grown - freed]


def reordered(problem: PartitionProblem, order: Integers, bundles: Bundles) -> PartitionProblem:
    """The same problem with node `order[p]` at position p, and cuts allowed between any two bundles."""
    n = problem.num_nodes
    position = np.empty(n + 1, dtype=np.int64)
    position[order], position[n] = np.arange(n), n
    owner = bundles.bundle_of_node[order]
    cut_allowed = np.ones(n + 1, dtype=np.bool_)
    cut_allowed[1:n] = owner[1:] != owner[:-1]
    return problem.with_nodes(
        order,
        value_producer=moved(problem.value_producer, position),
        root_producer=moved(problem.root_producer, position),
        read_node=position[problem.read_node],
        use_node=position[problem.use_node],
        shown_node=position[problem.shown_node],
        cut_allowed=cut_allowed,
    )
