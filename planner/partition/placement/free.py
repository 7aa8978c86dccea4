"""Least maximum load where a device may take any nodes: a portfolio, with a bound that is proven."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from planner.partition.placement.annealing import annealed, loads_of
from planner.partition.placement.loads import device_loads
from planner.partition.placement.lower_bound import lower_bound
from planner.partition.placement.must_fit import check_can_exist, no_packing_found
from planner.partition.placement.netlist import Netlist, netlist_of
from planner.partition.placement.packing import first_packing, fits
from planner.partition.placement.problem import OutOfTime, Placement, PlacementProblem, never
from planner.partition.problem import Integers

DEFAULT_EFFORT = 4_000_000


def best_free(
    problem: PlacementProblem,
    *,
    start: Sequence[Placement] = (),
    effort: int = DEFAULT_EFFORT,
    out_of_time: OutOfTime = never,
) -> Placement:
    """No worse than any of `start`. `effort`: steps of annealing, some millions a second. Raises Infeasible."""
    check_can_exist(problem)
    netlist = netlist_of(problem)
    bound = lower_bound(netlist)
    found = _first(problem, netlist, start)
    found, _ = annealed(netlist, found, steps=effort, target_seconds=bound, out_of_time=out_of_time)
    return _placement(problem, netlist, found, bound)


def _first(problem: PlacementProblem, netlist: Netlist, start: Sequence[Placement]) -> Integers:
    """The best of what is given, else a packing."""
    given = [_cells(netlist, placement) for placement in start]
    usable = [devices for devices in given if fits(netlist, devices)]
    if usable:
        return min(usable, key=lambda devices: float(loads_of(netlist, devices).max()))
    packed = first_packing(netlist)
    if packed is None:
        raise no_packing_found(problem, proven=False)
    return packed


def _cells(netlist: Netlist, placement: Placement) -> Integers:
    devices = np.full(netlist.num_cells, -1)
    devices[netlist.cell_of_node] = np.asarray(placement.device_of_node, dtype=np.int64)
    return devices


def _placement(problem: PlacementProblem, netlist: Netlist, cells: Integers, bound: float) -> Placement:
    devices = cells[netlist.cell_of_node]
    value = float(device_loads(problem, devices).max())
    return Placement(device_of_node=tuple(devices.tolist()), value_seconds=value, lower_bound_seconds=min(bound, value))
