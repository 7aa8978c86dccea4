"""The least-latency problem without the choices that do not matter, so that its order ideals stay few.

Three rules, each of which keeps some optimum or can only lower it: a source that costs nothing on a parallel class runs
there; colocated nodes that no other block can come between are one unit; and a node that costs nothing on a parallel
class, and only has one neighbour, is an option of that neighbour's unit: taken into its block, or left outside for a
transfer.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from planner.cost_graphs.placement.problem import PlacementProblem, node_order, producers_of_nodes
from planner.partition.problem import Booleans, Floats, Integers

FREE = -1
CORE = -1


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PassUnits:
    """Arrays by node [n], unit [u] and option [o].

    `unit_of_node` is FREE for a node that runs on a parallel class at no cost.
    `option_of_node` is CORE for what is no option's. An option is outside its unit's block unless taken: it then
    costs `option_bytes` and `option_seconds` [k, o] and saves the transfer of `option_tensor`, which a sink's option
    saves only where nothing else outside reads it.
    """

    num_units: int
    unit_of_node: Integers
    option_of_node: Integers
    option_unit: Integers
    option_tensor: Integers
    option_is_sink: Booleans
    option_bytes: Floats
    option_seconds: Floats

    @property
    def is_core(self) -> Booleans:
        """[n]: in a unit, and no option's."""
        core: Booleans = (self.unit_of_node != FREE) & (self.option_of_node == CORE)
        return core


def pass_units(problem: PlacementProblem) -> PassUnits:
    """O(passes * (nodes + reads)), with at most as many passes as a colocation group has nodes."""
    costless = _costless(problem)
    free = _free_sources(problem, costless)
    groups = _Groups(problem, free)
    groups.join()
    return _numbered(problem, free, groups, costless)


def _costless(problem: PlacementProblem) -> Booleans:
    """[n] whether the node takes no time on a parallel class and no other node shares its place."""
    quick = problem.seconds[problem.class_is_parallel].min(axis=0, initial=np.inf) == 0
    costless: Booleans = quick & (np.bincount(problem.colocation)[problem.colocation] == 1)
    return costless


def _free_sources(problem: PlacementProblem, costless: Booleans) -> set[int]:
    costly = set(problem.tensor_producer[(problem.transfer_seconds > 0).any(axis=0)].tolist())
    producers = producers_of_nodes(problem)
    free: set[int] = set()
    for node in node_order(problem):
        if costless[node] and node not in costly and free.issuperset(producers[node]):
            free.add(node)
    return free


class _Groups:
    """Colocated nodes joined step by step; `root[n]` names a node's group."""

    def __init__(self, problem: PlacementProblem, free: set[int]) -> None:
        self._problem = problem
        self._colocation = problem.colocation.tolist()
        self.root = list(range(problem.num_nodes))
        makers = problem.tensor_producer[problem.read_tensor].tolist()
        self._arcs = [arc for arc in zip(makers, problem.read_node.tolist(), strict=True) if not free.intersection(arc)]
        self._members: dict[int, list[int]] = {node: [node] for node in self.root}

    def join(self) -> None:
        while self._join_readers() or self._join_sources():
            pass

    def neighbours(self) -> tuple[dict[int, set[int]], dict[int, set[int]]]:
        """(groups before, groups after) by group."""
        before: dict[int, set[int]] = {group: set() for group in self._members}
        after: dict[int, set[int]] = {group: set() for group in self._members}
        for source, target in self._arcs:
            first, second = self.root[source], self.root[target]
            if first != second:
                before[second].add(first)
                after[first].add(second)
        return before, after

    def _join_readers(self) -> bool:
        """A group that only reads from one group of its own colocation joins it: nothing can run between."""
        before, _ = self.neighbours()
        pairs = [(next(iter(others)), group) for group, others in before.items() if len(others) == 1]
        return self._merge(pairs)

    def _join_sources(self) -> bool:
        """A group that reads nothing and is only read by one of its own colocation: a separate block never pays."""
        before, after = self.neighbours()
        pairs = [
            (next(iter(others)), group)
            for group, others in after.items()
            if len(others) == 1 and not before[group] and self._cheap(group)
        ]
        return self._merge(pairs)

    def _cheap(self, group: int) -> bool:
        """Whether running the group takes no longer than sending what it makes, on every serial class."""
        members = self._members[group]
        own_tensors = np.isin(self._problem.tensor_producer, members)
        serial = ~self._problem.class_is_parallel
        running = self._problem.seconds[serial][:, members].sum(axis=1)
        sending = self._problem.transfer_seconds[serial][:, own_tensors]
        smallest = sending.min(axis=1, initial=np.inf) if sending.shape[1] else np.zeros(int(serial.sum()))
        return bool(np.all(~np.isfinite(running) | (running <= smallest)))

    def _merge(self, pairs: list[tuple[int, int]]) -> bool:
        touched: set[int] = set()
        for into, group in pairs:
            if self._colocation[into] != self._colocation[group] or touched.intersection((into, group)):
                continue
            touched.add(group)
            for node in self._members.pop(group):
                self.root[node] = into
                self._members.setdefault(into, []).append(node)
        return bool(touched)


def _numbered(problem: PlacementProblem, free: set[int], groups: _Groups, costless: Booleans) -> PassUnits:
    options = _options(problem, free, groups, costless)
    host = {node: unit for unit, _, _, nodes in options for node in nodes}
    core = sorted(group for group in set(groups.root) if group not in free and group not in host)
    number = {group: index for index, group in enumerate(core)}
    unit_of_node = np.full(problem.num_nodes, FREE, dtype=np.int64)
    option_of_node = np.full(problem.num_nodes, CORE, dtype=np.int64)
    for node, root in enumerate(groups.root):
        if node not in free:
            unit_of_node[node] = number[host.get(node, root)]
    for index, (_, _, _, nodes) in enumerate(options):
        option_of_node[nodes] = index
    return PassUnits(
        num_units=len(core),
        unit_of_node=unit_of_node,
        option_of_node=option_of_node,
        option_unit=np.array([number[unit] for unit, _, _, _ in options], dtype=np.int64),
        option_tensor=np.array([tensor for _, tensor, _, _ in options], dtype=np.int64),
        option_is_sink=np.array([is_sink for _, _, is_sink, _ in options], dtype=np.bool_),
        option_bytes=np.array([problem.node_bytes[nodes].sum() for _, _, _, nodes in options], dtype=np.float64),
        option_seconds=np.array([problem.seconds[:, nodes].sum(axis=1) for _, _, _, nodes in options], dtype=np.float64)
        .reshape(len(options), problem.num_classes)
        .T.copy(),
    )


def _options(
    problem: PlacementProblem, free: set[int], groups: _Groups, costless: Booleans
) -> list[tuple[int, int, bool, list[int]]]:
    """(unit's group, tensor, whether sinks, nodes). Costless nodes with one neighbour, through one tensor."""
    reads: dict[int, list[int]] = {}
    readers: dict[int, list[int]] = {}
    outputs_of: dict[int, list[int]] = {}
    for tensor, producer in enumerate(problem.tensor_producer.tolist()):
        outputs_of.setdefault(producer, []).append(tensor)
    for tensor, node in zip(problem.read_tensor.tolist(), problem.read_node.tolist(), strict=True):
        readers.setdefault(tensor, []).append(node)
        if int(problem.tensor_producer[tensor]) not in free:
            reads.setdefault(node, []).append(tensor)
    sinks: dict[int, list[int]] = {}
    options: list[tuple[int, int, bool, list[int]]] = []
    optional: set[int] = set()
    for node in range(problem.num_nodes):
        if not costless[node] or node in free:
            continue
        outputs = [tensor for tensor in outputs_of.get(node, ()) if readers.get(tensor)]
        inputs = reads.get(node, [])
        if not outputs and len(inputs) == 1:
            sinks.setdefault(inputs[0], []).append(node)
            optional.add(node)
        elif not inputs and len(outputs) == 1 and len(readers[outputs[0]]) == 1:
            reader = readers[outputs[0]][0]
            if reader not in optional and not (costless[reader] and not outputs_of.get(reader)):
                options.append((groups.root[reader], outputs[0], False, [node]))
                optional.add(node)
    for tensor, nodes in sinks.items():
        producer = int(problem.tensor_producer[tensor])
        if producer not in optional:
            options.append((groups.root[producer], tensor, True, nodes))
    return options
