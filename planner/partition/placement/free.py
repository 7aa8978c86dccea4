"""Least maximum load where a device may take any nodes: a portfolio, with a bound that is proven."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count

import numpy as np

from planner.partition.placement.annealing import annealed, loads_of
from planner.partition.placement.loads import device_loads
from planner.partition.placement.lower_bound import lower_bound
from planner.partition.placement.milp import better_or_bound, num_columns
from planner.partition.placement.must_fit import check_can_exist, no_packing_found
from planner.partition.placement.netlist import Netlist, netlist_of
from planner.partition.placement.packing import first_packing, fits
from planner.partition.placement.problem import OutOfTime, Placement, PlacementProblem, never
from planner.partition.problem import Integers

DEFAULT_EFFORT = 4_000_000
_FIRST_TURN_STEPS = 4_000_000
# A step of the programme costs about the square of its columns.
_SQUARED_COLUMNS_PER_STEP = 16
_LEAST_QUESTIONS = 20
# A value this close to the bound, as a share, is taken for it.
_AS_GOOD = 3e-6


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
    found, bound = _searched(netlist, found, bound, effort, out_of_time)
    return _placement(problem, netlist, found, bound)


def _searched(
    netlist: Netlist, found: Integers, bound: float, effort: int, out_of_time: OutOfTime
) -> tuple[Integers, float]:
    """Annealing and the integer programme in turns, each turn longer, until value and bound meet or effort is spent."""
    left = effort
    for turn in count():
        steps = min(_FIRST_TURN_STEPS << turn, left)
        found, value = annealed(netlist, found, steps=steps, target_seconds=bound, out_of_time=out_of_time, turn=turn)
        left -= steps
        if value > bound and not out_of_time():
            questions = max(_LEAST_QUESTIONS, steps * _SQUARED_COLUMNS_PER_STEP // num_columns(netlist) ** 2)
            answer = better_or_bound(netlist, value, questions=questions, out_of_time=out_of_time)
            bound = max(bound, answer.lower_bound_seconds)
            found = _better(netlist, found, answer.devices)
        if left <= 0 or out_of_time() or float(loads_of(netlist, found).max()) <= bound * (1 + _AS_GOOD):
            break
    return found, bound


def _better(netlist: Netlist, found: Integers, other: Integers | None) -> Integers:
    if other is None or not fits(netlist, other):
        return found
    return other if loads_of(netlist, other).max() < loads_of(netlist, found).max() else found


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
