"""Least maximum load where a device may take any nodes: a portfolio, with a bound that is proven."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count

import numpy as np

from planner.partition.placement.costs import device_loads
from planner.partition.placement.infeasible import check_can_exist, nothing_fits
from planner.partition.placement.netlists.lower_bound import lower_bound
from planner.partition.placement.netlists.netlist import Netlist, loads_of, netlist_of
from planner.partition.placement.netlists.packing import first_packing, fits
from planner.partition.placement.netlists.resumable_searches import Annealing, Incumbent, Programmes, incumbent_of
from planner.partition.placement.problem import OutOfTime, Placement, PlacementProblem, never
from planner.partition.problem import Integers

DEFAULT_EFFORT = 4_000_000
_FIRST_TURN_STEPS, _MOST_DOUBLINGS = 4_000_000, 5


def best_free(problem: PlacementProblem, *, effort: int = DEFAULT_EFFORT, out_of_time: OutOfTime = never) -> Placement:
    """`effort`: steps of annealing, some millions a second. Raises Infeasible."""
    check_can_exist(problem)
    netlist = netlist_of(problem)
    best = first_incumbent(problem, netlist)
    annealing, programmes, left = Annealing(netlist), Programmes(netlist), effort
    for turn in count():
        steps = min(_FIRST_TURN_STEPS << min(turn, _MOST_DOUBLINGS), left)
        left -= steps
        best = annealing.turn(best, steps, out_of_time)
        if not out_of_time():
            best = programmes.turn(best, steps, out_of_time)
        if left <= 0 or out_of_time() or best.is_proven:
            break
    return placement_of(problem, netlist, best)


def first_incumbent(problem: PlacementProblem, netlist: Netlist, start: Sequence[Placement] = ()) -> Incumbent:
    """The best of what is given, else a packing; with the bound of what can be shared out. Raises Infeasible."""
    return incumbent_of(netlist, _first(problem, netlist, start), lower_bound(netlist))


def placement_of(problem: PlacementProblem, netlist: Netlist, incumbent: Incumbent) -> Placement:
    devices = incumbent.devices[netlist.cell_of_node]
    value = float(device_loads(problem, devices).max())
    bound = min(incumbent.bound_seconds, value)
    return Placement(device_of_node=tuple(devices.tolist()), value_seconds=value, lower_bound_seconds=bound)


def _first(problem: PlacementProblem, netlist: Netlist, start: Sequence[Placement]) -> Integers:
    """The best of what is given, else a packing."""
    starts = [_cells(netlist, placement) for placement in start]
    usable = [devices for devices in starts if fits(netlist, devices)]
    if usable:
        return min(usable, key=lambda devices: float(loads_of(netlist, devices).max()))
    packed = first_packing(netlist)
    if packed is None:
        raise nothing_fits(problem, "free", proven=False)
    return packed


def _cells(netlist: Netlist, placement: Placement) -> Integers:
    devices = np.full(netlist.num_cells, -1)
    devices[netlist.cell_of_node] = np.asarray(placement.device_of_node, dtype=np.int64)
    return devices
