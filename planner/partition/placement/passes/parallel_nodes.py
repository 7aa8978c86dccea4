"""Where the nodes go that run by themselves, on parallel classes: anywhere, unless stages are to follow each other."""

from __future__ import annotations

import numpy as np

from planner.partition.placement.node_order import node_order, producers_of_nodes
from planner.partition.placement.passes.chain import Run
from planner.partition.placement.passes.contraction import CORE
from planner.partition.placement.passes.unit_graph import PassGraph
from planner.partition.placement.problem import PlacementProblem
from planner.partition.problem import Integers

UNPLACED = -1


def place_parallel_nodes(graph: PassGraph, runs: tuple[Run, ...], devices: Integers, *, contiguous: bool) -> None:
    """Fills in `devices` [n] in place; a node stays UNPLACED where there is no device for it.

    If `contiguous`, a class has one device for what runs before the first block, one for what then waits for that one,
    and so on, as far as its devices go round: with enough of them, all devices can be put in an order.
    """
    problem, units = graph.problem, graph.units
    hosts = [host for host in graph.parallel.tolist() if problem.class_devices[host]]
    first = np.cumsum(problem.class_devices) - problem.class_devices
    class_of_unit = {unit: run.device_class for run in runs for unit in run.units}
    alone = np.flatnonzero(devices == UNPLACED)
    after = _blocks_before(problem, runs, graph, devices) if contiguous else [0] * problem.num_nodes
    turns = {level: turn for turn, level in enumerate(sorted({after[node] for node in alone.tolist()}))}
    for node in alone.tolist():
        device_class = class_of_unit.get(int(units.unit_of_node[node]), -1)
        if device_class not in hosts or units.option_of_node[node] != CORE:
            device_class = min(hosts, key=lambda host: (problem.seconds[host, node], host), default=UNPLACED)
        if device_class != UNPLACED:
            last = int(problem.class_devices[device_class]) - 1
            devices[node] = first[device_class] + min(turns[after[node]], last)


def _blocks_before(problem: PlacementProblem, runs: tuple[Run, ...], graph: PassGraph, devices: Integers) -> list[int]:
    """[n] the number, in the chain's order, of the last block that a node waits for, from 1; 0: it waits for none."""
    number = np.zeros(graph.num_units + 1, dtype=np.int64)
    blocks = [run for run in runs if not problem.class_is_parallel[run.device_class]]
    for index, run in enumerate(blocks):
        number[list(run.units)] = index + 1
    producers = producers_of_nodes(problem)
    last_block = [0] * problem.num_nodes
    for node in node_order(problem):
        own = int(number[graph.units.unit_of_node[node]]) if devices[node] != UNPLACED else 0
        last_block[node] = max([own, *(last_block[producer] for producer in producers[node])])
    return last_block
