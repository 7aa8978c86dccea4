"""A unit flow along the DAG's paths that makes every placement so far slow: the master programme of the latency's dual.

The latency is the longest path's, and so at least the mean over any flow along paths. Against a fixed flow, a block
costs its seconds times the share of the flow that passes through it, which adds up along a chain of ideals; the best
flow is a linear programme over the placements met so far (Kelley's cutting planes on the Lagrangian dual).
"""

from __future__ import annotations

import highspy
import numpy as np

from planner.partition.placement.passes.unit_graph import PassGraph
from planner.partition.problem import Floats, Integers


class FlowProgramme:
    """Arcs [e] of the graph's core nodes, then one arc into each source and one out of each sink."""

    def __init__(self, graph: PassGraph) -> None:
        nodes = np.flatnonzero(graph.is_core())
        sources = np.setdiff1d(nodes, graph.arc_target)
        sinks = np.setdiff1d(nodes, graph.arc_source)
        self.source = np.concatenate([graph.arc_source, np.full(sources.size, -1), sinks])
        self.target = np.concatenate([graph.arc_target, sources, np.full(sinks.size, -1)])
        self._nodes = nodes
        self._solver = self._programme()

    @property
    def num_arcs(self) -> int:
        return int(self.source.size)

    def add(self, arc_seconds: Floats) -> None:
        """A placement, as what entering the target of each arc costs."""
        used = np.flatnonzero(arc_seconds)
        index = np.concatenate([used, [self.num_arcs]]).astype(np.int32)
        values = np.concatenate([-arc_seconds[used], [1.0]])
        self._solver.addRow(-highspy.kHighsInf, 0.0, index.size, index, values)

    def best(self) -> tuple[float, Floats]:
        """(what the known placements can be made to cost at least, the flow [e])."""
        self._solver.run()
        solution = np.array(self._solver.getSolution().col_value)
        return float(solution[-1]), np.maximum(solution[:-1], 0.0)

    def _programme(self) -> highspy.Highs:
        solver = highspy.Highs()  # type: ignore[no-untyped-call]
        solver.setOptionValue("output_flag", False)
        solver.setOptionValue("threads", 1)
        solver.setOptionValue("solver", "simplex")
        count = self.num_arcs
        solver.addVars(count + 1, np.zeros(count + 1), np.full(count + 1, highspy.kHighsInf))
        solver.changeColCost(count, 1.0)
        solver.changeObjectiveSense(highspy.ObjSense.kMaximize)
        into, out = _by_node(self.target), _by_node(self.source)
        for node in self._nodes.tolist():
            arcs = np.array([*into[node], *out[node]], dtype=np.int32)
            signs = np.array([1.0] * len(into[node]) + [-1.0] * len(out[node]))
            solver.addRow(0.0, 0.0, arcs.size, arcs, signs)
        entering = np.flatnonzero(self.source == -1).astype(np.int32)
        solver.addRow(1.0, 1.0, entering.size, entering, np.ones(entering.size))
        # Without a placement nothing bounds the value.
        solver.changeColBounds(count, 0.0, 1e30)
        return solver


def _by_node(ends: Integers) -> dict[int, list[int]]:
    arcs_of_node: dict[int, list[int]] = {}
    for arc, node in enumerate(ends.tolist()):
        arcs_of_node.setdefault(node, []).append(arc)
    return arcs_of_node
