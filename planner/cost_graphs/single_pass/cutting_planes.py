"""Bounds on the latency by Kelley's cutting planes: chains of ideals against flows along paths, by turns.

The latency is the longest path's, so at least the mean over paths that a unit flow weighs. Against a fixed flow a block
costs its seconds times the flow through it, which adds up along a chain: the cheapest chain bounds all. The flow that
makes the chains so far the slowest is a linear programme. It ends once the best chain is proven, or no flow bounds it
better.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import highspy
import numpy as np

from planner.cost_graphs.single_pass.chain import ChainSpace, CheapestChain, arc_seconds, cheapest_chain
from planner.cost_graphs.single_pass.devices_of_runs import PassIncumbent
from planner.cost_graphs.single_pass.unit_graph import PassGraph
from planner.partition.out_of_time import OutOfTime
from planner.partition.problem import Floats, Integers

# Where the flows so far meet the chains so far this closely, more rounds add nothing.
SETTLED = 1e-7


@dataclass(slots=True, kw_only=True)
class ChainBound:
    """`space` holds all chains that may still beat the incumbent. `flows`: those that raised the bound, the last one
    highest."""

    lower_bound: float
    space: ChainSpace
    flows: list[Floats] = field(default_factory=list)


def raise_bound(
    space: ChainSpace,
    programme: FlowProgramme,
    incumbent: PassIncumbent,
    start: Floats | None,
    rounds: int,
    out_of_time: OutOfTime,
) -> ChainBound:
    """Kelley's cutting planes, most queries half-way to the best flow so far. `start` is a flow to try first."""
    result = ChainBound(lower_bound=0.0, space=space)
    flow = programme.best()[1] if start is None else start
    centre = flow
    for turn in range(rounds):
        cheapest = cheapest_chain(result.space, programme.source, programme.target, flow)
        if cheapest.runs:
            incumbent.offer_runs(space.graph, cheapest.runs)
            programme.add(arc_seconds(space.graph, cheapest.runs, programme.source, programme.target))
        if cheapest.seconds > result.lower_bound:
            centre, result.lower_bound = flow, cheapest.seconds
            result.flows.append(flow)
        _drop_blocks(result, cheapest, incumbent)
        if result.lower_bound >= incumbent.to_beat or not cheapest.runs or out_of_time():
            break
        most, edge = programme.best()
        if most - result.lower_bound <= SETTLED * most:
            break
        flow = edge if turn % 3 == 2 else 0.5 * (edge + centre)
    return result


def _drop_blocks(result: ChainBound, cheapest: CheapestChain, incumbent: PassIncumbent) -> None:
    may_be_better = cheapest.through < incumbent.to_beat
    if 10 * np.count_nonzero(may_be_better) <= 9 * may_be_better.size:
        result.space = result.space.with_blocks(may_be_better)


class FlowProgramme:
    """Finds the flow. Arcs [e] of the graph's core nodes, then one arc into each source and one out of each sink."""

    def __init__(self, graph: PassGraph) -> None:
        nodes = np.flatnonzero(graph.units.is_core)
        sources = np.setdiff1d(nodes, graph.arc_target)
        sinks = np.setdiff1d(nodes, graph.arc_source)
        self.source = np.concatenate([graph.arc_source, np.full(sources.size, -1), sinks])
        self.target = np.concatenate([graph.arc_target, sources, np.full(sinks.size, -1)])
        self._nodes = nodes
        self._solver = self._programme()

    @property
    def num_arcs(self) -> int:
        return int(self.source.size)

    def add(self, seconds: Floats) -> None:
        """A placement, as what entering the target of each arc costs."""
        used = np.flatnonzero(seconds)
        index = np.concatenate([used, [self.num_arcs]]).astype(np.int32)
        values = np.concatenate([-seconds[used], [1.0]])
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
