"""A chain of ideals from nothing to everything: the order in which units, alone or in blocks, run."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from planner.partition.placement.device_states import DeviceStates
from planner.partition.placement.passes.blocks import PassBlocks
from planner.partition.placement.passes.unit_graph import PassGraph
from planner.partition.placement.passes.unit_ideals import PassIdeals
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
