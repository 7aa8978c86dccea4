"""Bounds on the latency by Kelley's cutting planes: chains of ideals against flows along paths, by turns.

Until the best chain is proven, or no flow bounds it better.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from planner.partition.placement.passes.chain import ChainSpace, Run, arc_seconds
from planner.partition.placement.passes.cheapest_chain import CheapestChain, cheapest_chain
from planner.partition.placement.passes.devices_of_runs import place_runs, placed_seconds
from planner.partition.placement.passes.path_flow import FlowProgramme
from planner.partition.placement.passes.unit_graph import PassGraph
from planner.partition.placement.problem import OutOfTime, PlacementProblem
from planner.partition.problem import Floats, Integers

# Two latencies that differ by less, relative to the larger, are the same.
EQUAL = 1e-9
# Where the flows so far meet the chains so far this closely, more rounds add nothing.
SETTLED = 1e-7


@dataclass(slots=True, kw_only=True)
class Incumbent:
    """The best placement met so far."""

    problem: PlacementProblem
    contiguous: bool
    devices: Integers | None = None
    seconds: float = np.inf

    def offer(self, graph: PassGraph, runs: tuple[Run, ...]) -> None:
        self.offer_devices(place_runs(graph, runs, contiguous=self.contiguous))

    def offer_devices(self, devices: Integers | None) -> None:
        seconds = None if devices is None else placed_seconds(self.problem, devices)
        if seconds is not None and seconds < self.seconds:
            self.devices, self.seconds = devices, seconds

    @property
    def to_beat(self) -> float:
        """What another has to stay under to count as better."""
        return self.seconds * (1 - EQUAL)


@dataclass(slots=True, kw_only=True)
class ChainBound:
    """`space` holds all chains that may still beat the incumbent; `flows` are flows, the last bounding best."""

    lower_bound: float
    space: ChainSpace
    flows: list[Floats] = field(default_factory=list)


def raise_bound(
    space: ChainSpace,
    programme: FlowProgramme,
    incumbent: Incumbent,
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
            incumbent.offer(space.graph, cheapest.runs)
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


def _drop_blocks(result: ChainBound, cheapest: CheapestChain, incumbent: Incumbent) -> None:
    may_be_better = cheapest.through < incumbent.to_beat
    if 10 * np.count_nonzero(may_be_better) <= 9 * may_be_better.size:
        result.space = result.space.with_blocks(may_be_better)
