"""The cheapest chain against a flow along paths: a bound on any placement's latency, and what meets it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from planner.partition.placement.passes.chain import ChainSpace, Run
from planner.partition.problem import Floats, Integers


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
    from planner.partition.placement.passes.cheapest_chain_kernel import (
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
    core = np.flatnonzero(graph.is_core())
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
