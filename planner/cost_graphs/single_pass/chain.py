"""A chain of ideals from nothing to everything: the order in which units, alone or in blocks, run.

The cheapest chain against a flow along paths bounds the latency of any placement.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from planner.cost_graphs.single_pass.blocks import PassBlocks, PassIdeals
from planner.cost_graphs.single_pass.unit_graph import PassGraph
from planner.partition.placement.device_states import DeviceStates
from planner.partition.problem import Booleans, Floats, Integers

ANY = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """`units` run together on a device of a class, in `seconds` as a block; on a parallel class each node by itself.

    `device` is ANY where it is still to be chosen.
    """

    units: tuple[int, ...]
    device_class: int
    seconds: float
    device: int = ANY


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ChainSpace:
    """What chains are made of. A unit's run alone is a step of `ideals`."""

    graph: PassGraph
    ideals: PassIdeals
    blocks: PassBlocks
    states: DeviceStates

    def with_blocks(self, mask: Booleans) -> ChainSpace:
        """Without the other blocks."""
        ends = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(mask, dtype=np.int64)])
        blocks = PassBlocks(
            begin=ends[self.blocks.begin],
            before=self.blocks.before[mask],
            serial_class=self.blocks.serial_class[mask],
            seconds=self.blocks.seconds[mask],
        )
        return replace(self, blocks=blocks)

    def runs(self, ways: Integers, came: Integers, state: int, unit_class: Integers) -> tuple[Run, ...]:
        """Follows `ways` [i, s] back from the full ideal: a block, or -1 minus a step on the class `unit_class` [u]."""
        runs: list[Run] = []
        ideal = self.ideals.num_ideals - 1
        while ideal:
            way, state = int(ways[ideal, state]), int(came[ideal, state])
            if way < 0:
                unit = int(self.ideals.step_unit[-1 - way])
                runs.append(Run(units=(unit,), device_class=int(unit_class[unit]), seconds=0.0))
                ideal = int(self.ideals.step_from[-1 - way])
            else:
                runs.append(self.run_of_block(way, ideal))
                ideal = int(self.blocks.before[way])
        return tuple(reversed(runs))

    def run_of_block(self, block: int, after: int) -> Run:
        inside = self.ideals.inside
        units = np.flatnonzero(inside[after] & ~inside[self.blocks.before[block]] & 1)
        device_class = int(self.graph.serial[self.blocks.serial_class[block]])
        return Run(units=tuple(units.tolist()), device_class=device_class, seconds=float(self.blocks.seconds[block]))


def arc_seconds(graph: PassGraph, runs: tuple[Run, ...], source: Integers, target: Integers) -> Floats:
    """[e] what a path pays on entering each arc's target: a block once, a node of a parallel class always.

    A node of -1 is outside the graph.
    """
    problem, unit_of_node = graph.problem, graph.units.unit_of_node
    run_of_unit = np.zeros(graph.num_units, dtype=np.int64)
    for index, run in enumerate(runs):
        run_of_unit[list(run.units)] = index
    classes = np.array([run.device_class for run in runs], dtype=np.int64)
    lasts = np.array([run.seconds for run in runs])
    of_node = np.where(unit_of_node >= 0, run_of_unit[unit_of_node], -1)
    alone = problem.class_is_parallel[classes]
    there = target >= 0
    run_there = of_node[target]
    within = (source >= 0) & (of_node[source] == run_there)
    node_seconds = problem.seconds[classes[run_there], target]
    paid = np.where(alone[run_there], node_seconds, np.where(within, 0.0, lasts[run_there]))
    return np.where(there, paid, 0.0)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CheapestChain:
    """`seconds`, of the flow, is a lower bound on the latency of every chain; inf if there is none.

    `through` [b] bounds the latency of chains with that block, `behind` [i, s] what is left from there on.
    """

    seconds: float
    runs: tuple[Run, ...]
    through: Floats
    behind: Floats


def cheapest_chain(space: ChainSpace, source: Integers, target: Integers, flow: Floats) -> CheapestChain:
    """`flow` [e] on arcs from `source` to `target` nodes, -1 outside. O(blocks * (border + states))."""
    from planner.cost_graphs.single_pass.chain_kernel import (
        chain_backward,
        chain_forward,
        cost_through,
        weigh_blocks,
    )

    ideals, blocks, following = space.ideals, space.blocks, np.ascontiguousarray(space.states.step.T)
    around, begin, units, beside = _around(space, source, target, flow)
    weighed = weigh_blocks(blocks.begin, blocks.before, blocks.seconds, ideals.inside, around, begin, units, beside)
    unit_seconds, unit_class = _on_parallel_classes(space, target, flow)
    step_weighed = unit_seconds[ideals.step_unit]
    listed = (blocks.begin, blocks.before, blocks.serial_class, weighed)
    steps = (ideals.step_begin, ideals.step_from, step_weighed)
    ahead, ways, came = chain_forward(*listed, *steps, following)
    behind = chain_backward(*listed, *steps, following)
    last = int(ahead[-1].argmin())
    seconds = float(ahead[-1, last])
    return CheapestChain(
        seconds=seconds,
        runs=space.runs(ways, came, last, unit_class) if np.isfinite(seconds) else (),
        through=cost_through(*listed, following, ahead, behind),
        behind=behind,
    )


def _on_parallel_classes(space: ChainSpace, target: Integers, flow: Floats) -> tuple[Floats, Integers]:
    """([u] a unit's cost on its cheapest parallel class, that class)."""
    graph = space.graph
    problem, unit_of_node = graph.problem, graph.units.unit_of_node
    if not graph.parallel.size:
        return np.full(graph.num_units, np.inf), np.zeros(graph.num_units, dtype=np.int64)
    there = target >= 0
    through = np.bincount(target[there], weights=flow[there], minlength=problem.num_nodes)
    core = np.flatnonzero(graph.units.is_core)
    costs = np.zeros((graph.parallel.size, graph.num_units))
    for row, device_class in enumerate(graph.parallel):
        seconds = problem.seconds[device_class, core]
        with np.errstate(invalid="ignore"):
            paid = np.where(np.isinf(seconds), np.inf, through[core] * seconds)
        np.add.at(costs[row], unit_of_node[core], paid)
    best = costs.argmin(axis=0)
    return costs[best, np.arange(graph.num_units)], graph.parallel[best]


def _around(
    space: ChainSpace, source: Integers, target: Integers, flow: Floats
) -> tuple[Floats, Integers, Integers, Floats]:
    """(`around`, `beside_begin`, `beside_unit`, `beside_flow`) of weigh_blocks."""
    unit_of_node, inside, count = space.graph.units.unit_of_node, space.ideals.inside, space.graph.num_units
    starts, ends = source < 0, target < 0
    started = np.bincount(unit_of_node[target[starts]], weights=flow[starts], minlength=count)
    ended = np.bincount(unit_of_node[source[ends]], weights=flow[ends], minlength=count)
    around = np.stack([inside @ ended, started.sum() - inside @ started])
    between = ~starts & ~ends & (flow > 0)
    makers, readers = unit_of_node[source[between]], unit_of_node[target[between]]
    unit_flow = np.zeros((count, count))
    np.add.at(unit_flow, (makers, readers), flow[between])
    np.fill_diagonal(unit_flow, 0.0)
    active = np.flatnonzero(unit_flow.sum(axis=1) > 0)
    outside = np.where(inside[:, active] != 0, (1.0 - inside) @ unit_flow[active].T, 0.0)
    rows, columns = np.nonzero(outside > 0)
    begin = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(np.bincount(rows, minlength=inside.shape[0]))])
    return around, begin, active[columns], outside[rows, columns]
