"""Chains against mixes of paths, until the best chain is proven or no mix bounds it better."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from planner.partition.placement.passes.chain import ChainSpace, Run, arc_seconds
from planner.partition.placement.passes.flow import FlowGame
from planner.partition.placement.passes.graph import PassGraph
from planner.partition.placement.passes.mix import MixedChain, cheapest_chain
from planner.partition.placement.passes.placement import place_runs, placed_seconds
from planner.partition.placement.problem import OutOfTime, PlacementProblem
from planner.partition.problem import Floats, Integers

# Two latencies that differ by less, relative to the larger, are the same.
EQUAL = 1e-9
# Where the known mixes meet the known chains this closely, more rounds add nothing.
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
class GameResult:
    """`space` holds all chains that may still beat the incumbent; `mixes` are flows, the last bounding best."""

    lower_bound: float
    space: ChainSpace
    mixes: list[Floats] = field(default_factory=list)


def play(
    space: ChainSpace,
    game: FlowGame,
    incumbent: Incumbent,
    start: Floats | None,
    rounds: int,
    out_of_time: OutOfTime,
) -> GameResult:
    """Kelley's cutting planes, most queries half-way to the best mix so far. `start` is a mix to try first."""
    result = GameResult(lower_bound=0.0, space=space)
    flow = game.best()[1] if start is None else start
    centre = flow
    for turn in range(rounds):
        mixed = cheapest_chain(result.space, game.source, game.target, flow)
        if mixed.runs:
            incumbent.offer(space.graph, mixed.runs)
            game.add(arc_seconds(space.graph, mixed.runs, game.source, game.target))
        if mixed.seconds > result.lower_bound:
            centre, result.lower_bound = flow, mixed.seconds
            result.mixes.append(flow)
        _drop_blocks(result, mixed, incumbent)
        if result.lower_bound >= incumbent.to_beat or not mixed.runs or out_of_time():
            break
        most, edge = game.best()
        if most - result.lower_bound <= SETTLED * most:
            break
        flow = edge if turn % 3 == 2 else 0.5 * (edge + centre)
    return result


def _drop_blocks(result: GameResult, mixed: MixedChain, incumbent: Incumbent) -> None:
    may_be_better = mixed.through < incumbent.to_beat
    if 10 * np.count_nonzero(may_be_better) <= 9 * may_be_better.size:
        result.space = result.space.with_blocks(may_be_better)
