"""The nodes at each ideal's border, and how their finish times carry over to the next ideal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from planner.cost_graphs.placement.problem import node_order
from planner.cost_graphs.single_pass.blocks import PassIdeals
from planner.cost_graphs.single_pass.unit_graph import PassGraph
from planner.partition.problem import Booleans, Floats, Integers


class FinishTimes:
    """Finish times [l, border + 1] are in the order of the border's nodes; the last column is the latest end so far."""

    def __init__(
        self, graph: PassGraph, ideals: PassIdeals, source: Integers, target: Integers, flows: Sequence[Floats]
    ) -> None:
        self._graph, self._inside = graph, ideals.inside
        self._unit_of_node = graph.units.unit_of_node
        num_nodes, num_units = graph.problem.num_nodes, graph.num_units
        self._read_by = np.zeros((num_nodes, num_units), dtype=np.bool_)
        self._read_by[graph.arc_source, self._unit_of_node[graph.arc_target]] = True
        core = np.flatnonzero(graph.units.is_core)
        self._is_end = np.zeros(num_nodes, dtype=np.bool_)
        self._is_end[np.setdiff1d(core, graph.arc_source)] = True
        self._core_of_unit = _nodes_by_unit(graph)
        self._producers: list[list[int]] = [[] for _ in range(num_nodes)]
        for maker, reader in zip(graph.arc_source.tolist(), graph.arc_target.tolist(), strict=True):
            self._producers[reader].append(maker)
        self._flows = [_flow_tables(graph, source, target, flow) for flow in flows]
        self._borders: dict[int, Integers] = {}

    def border(self, ideal: int) -> Integers:
        nodes = self._borders.get(ideal)
        if nodes is None:
            inside = self._inside[ideal].astype(np.bool_)
            open_node = self._read_by[:, ~inside].any(axis=1) & (self._unit_of_node >= 0)
            open_node &= inside[self._unit_of_node]
            nodes = self._borders[ideal] = np.flatnonzero(open_node)
        return nodes

    def crossing_flow(self, flow_index: int, ideal: int) -> tuple[Floats, float]:
        """([border] flow out of the ideal, flow that has not ended inside it)."""
        to_unit, ended = self._flows[flow_index]
        inside = self._inside[ideal]
        return to_unit[self.border(ideal)] @ (1.0 - inside), 1.0 - float(inside @ ended)

    def after_block(
        self, ideal: int, target: int, finish: Floats, idle_from: Floats, seconds: float
    ) -> tuple[Floats, Floats]:
        """(finish times, [l] when the block ends) of a block that waits for what it reads and for `idle_from` [l]."""
        members: Booleans = (self._inside[target] != 0) & (self._inside[ideal] == 0)
        reads = self._read_by[self.border(ideal)][:, members].any(axis=1)
        end = np.maximum(idle_from, finish[:, :-1][:, reads].max(axis=1, initial=0.0)) + seconds
        ends = any(self._is_end[self._core_of_unit[unit]].any() for unit in np.flatnonzero(members))
        block_ends = dict.fromkeys(self._new(ideal, target), end)
        return self._carried(ideal, target, finish, block_ends, end if ends else None), end

    def after_unit(self, ideal: int, target: int, finish: Floats, unit: int) -> Iterator[tuple[int, Floats]]:
        """(class, finish times) for each parallel class on which the unit runs."""
        problem = self._graph.problem
        column = {node: index for index, node in enumerate(self.border(ideal).tolist())}
        for device_class in self._graph.parallel.tolist():
            if not np.isfinite(problem.seconds[device_class, self._core_of_unit[unit]]).all():
                continue
            ends: dict[int, Floats] = {}
            latest = np.zeros(finish.shape[0])
            for node in self._core_of_unit[unit].tolist():
                start = np.zeros(finish.shape[0])
                for maker in self._producers[node]:
                    start = np.maximum(start, ends[maker] if maker in ends else finish[:, column[maker]])
                ends[node] = start + problem.seconds[device_class, node]
                if self._is_end[node]:
                    latest = np.maximum(latest, ends[node])
            yield device_class, self._carried(ideal, target, finish, ends, latest)

    def _new(self, ideal: int, target: int) -> list[int]:
        nodes: list[int] = np.setdiff1d(self.border(target), self.border(ideal)).tolist()
        return nodes

    def _carried(
        self, ideal: int, target: int, finish: Floats, ends: dict[int, Floats], latest: Floats | None
    ) -> Floats:
        column = {node: index for index, node in enumerate(self.border(ideal).tolist())}
        border = self.border(target).tolist()
        times = np.empty((finish.shape[0], len(border) + 1))
        for index, node in enumerate(border):
            times[:, index] = finish[:, column[node]] if node in column else ends[node]
        times[:, -1] = finish[:, -1] if latest is None else np.maximum(finish[:, -1], latest)
        return times


def _nodes_by_unit(graph: PassGraph) -> list[Integers]:
    """[u] core nodes, producers first."""
    core = graph.units.is_core
    by_unit: list[list[int]] = [[] for _ in range(graph.num_units)]
    for node in node_order(graph.problem):
        if core[node]:
            by_unit[int(graph.units.unit_of_node[node])].append(node)
    return [np.array(nodes, dtype=np.int64) for nodes in by_unit]


def _flow_tables(graph: PassGraph, source: Integers, target: Integers, flow: Floats) -> tuple[Floats, Floats]:
    """(flow [n, u] from a node into a unit, flow [u] that ends in a unit)."""
    unit_of_node = graph.units.unit_of_node
    to_unit = np.zeros((graph.problem.num_nodes, graph.num_units))
    between = (source >= 0) & (target >= 0)
    np.add.at(to_unit, (source[between], unit_of_node[target[between]]), flow[between])
    ending = target < 0
    ended = np.zeros(graph.num_units)
    np.add.at(ended, unit_of_node[source[ending]], flow[ending])
    return to_unit, ended
