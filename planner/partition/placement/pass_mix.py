"""The cheapest chain against a mix of paths: a bound on any placement's latency, and the placement that meets it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from planner.partition.placement.pass_chain import ChainSpace, Run
from planner.partition.problem import Booleans, Floats, Integers


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MixedChain:
    """`seconds`, of the mix, is a lower bound on the latency of every chain. `weighed` [b] and `ahead`, `behind` [i]."""

    seconds: float
    runs: tuple[Run, ...]
    weighed: Floats
    ahead: Floats
    behind: Floats


def cheapest_chain(space: ChainSpace, source: Integers, target: Integers, flow: Floats) -> MixedChain:
    """`flow` [e] on arcs from `source` to `target` nodes, -1 outside. O(blocks * border)."""
    from planner.partition.placement.pass_chain_kernel import chain_backward, chain_forward, weigh_blocks

    graph, ideals, blocks = space.graph, space.ideals, space.blocks
    around, begin, units, beside = _around(space, source, target, flow)
    weighed = weigh_blocks(blocks.begin, blocks.before, blocks.seconds, ideals.inside, around, begin, units, beside)
    unit_seconds, unit_class = _alone(space, target, flow)
    step_weighed = unit_seconds[ideals.step_unit]
    steps = (ideals.step_begin, ideals.step_from, step_weighed)
    ahead, ways = chain_forward(blocks.begin, blocks.before, weighed, *steps)
    behind = chain_backward(blocks.begin, blocks.before, weighed, *steps)
    runs = space.runs(ways, unit_class) if np.isfinite(ahead[-1]) else ()
    assert graph.num_units or not runs
    return MixedChain(seconds=float(ahead[-1]), runs=runs, weighed=weighed, ahead=ahead, behind=behind)


def worth_keeping(space: ChainSpace, mixed: MixedChain, at_most: float) -> Booleans:
    """[b] whether some chain through the block costs no more against this mix."""
    after = np.repeat(np.arange(space.ideals.num_ideals), np.diff(space.blocks.begin))
    through = mixed.ahead[space.blocks.before] + mixed.weighed + mixed.behind[after]
    kept: Booleans = through <= at_most
    return kept


def _alone(space: ChainSpace, target: Integers, flow: Floats) -> tuple[Floats, Integers]:
    """([u] a unit's cost on its cheapest parallel class, that class)."""
    graph = space.graph
    problem, unit_of_node = graph.problem, graph.units.unit_of_node
    if not graph.parallel.size:
        return np.full(graph.num_units, np.inf), np.zeros(graph.num_units, dtype=np.int64)
    there = target >= 0
    through = np.bincount(target[there], weights=flow[there], minlength=problem.num_nodes)
    core = np.flatnonzero(graph.is_core())
    costs = np.zeros((graph.parallel.size, graph.num_units))
    for row, chosen in enumerate(graph.parallel):
        seconds = problem.seconds[chosen, core]
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
    moved = np.zeros((count, count))
    np.add.at(moved, (makers, readers), flow[between])
    np.fill_diagonal(moved, 0.0)
    active = np.flatnonzero(moved.sum(axis=1) > 0)
    outside = np.where(inside[:, active] != 0, (1.0 - inside) @ moved[active].T, 0.0)
    rows, columns = np.nonzero(outside > 0)
    begin = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(np.bincount(rows, minlength=inside.shape[0]))])
    return around, begin, active[columns], outside[rows, columns]
