"""Least maximum load where a device may take any nodes: two searches, the best in hand and the bound that is proven.

Each search takes the best in hand and gives back one no worse. Two processes run them, `worker` beside this folder.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from planner.cost_graphs.placement.costs import device_loads
from planner.cost_graphs.placement.infeasible import nothing_fits
from planner.cost_graphs.placement.netlists.annealing import annealed
from planner.cost_graphs.placement.netlists.lower_bound import lower_bound
from planner.cost_graphs.placement.netlists.milp import OnQuestion, better_or_bound, num_columns
from planner.cost_graphs.placement.netlists.neighbourhoods import NeighbourhoodSearch
from planner.cost_graphs.placement.netlists.netlist import Netlist, loads_of
from planner.cost_graphs.placement.problem import Placement, PlacementProblem
from planner.partition.out_of_time import OutOfTime
from planner.partition.placement.packing import first_packing, fits
from planner.partition.problem import Integers

# A question of the programme takes about the square of its columns.
_SQUARED_COLUMNS_PER_STEP = 16
# A value this close to the bound, as a share, is taken for it.
AS_GOOD = 3e-6


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


@dataclass(frozen=True, kw_only=True, eq=False)
class Incumbent:
    """`devices` [cells] and their greatest load; no placement is below `bound_seconds`."""

    devices: Integers
    value_seconds: float
    bound_seconds: float

    @property
    def is_proven(self) -> bool:
        return self.value_seconds <= self.bound_seconds * (1 + AS_GOOD)


def incumbent_of(netlist: Netlist, devices: Integers, bound_seconds: float) -> Incumbent:
    return Incumbent(
        devices=devices, value_seconds=float(loads_of(netlist, devices).max()), bound_seconds=bound_seconds
    )


def improved(netlist: Netlist, incumbent: Incumbent, devices: Integers | None, bound_seconds: float = 0.0) -> Incumbent:
    """With `devices` if they fit and are better, and the greater bound."""
    bound = max(incumbent.bound_seconds, bound_seconds)
    if devices is not None and fits(netlist, devices):
        candidate = incumbent_of(netlist, devices, bound)
        if candidate.value_seconds < incumbent.value_seconds:
            return candidate
    return Incumbent(devices=incumbent.devices, value_seconds=incumbent.value_seconds, bound_seconds=bound)


def steps_of_question(netlist: Netlist) -> int:
    """Of annealing, which take about as long as what a programme of the whole does between two of its questions."""
    return max(1, num_columns(netlist) ** 2 // _SQUARED_COLUMNS_PER_STEP)


class Annealing:
    """Rounds that differ from turn to turn."""

    def __init__(self, netlist: Netlist, first_turn: int = 0) -> None:
        self._netlist = netlist
        self._turn = first_turn

    def turn(self, incumbent: Incumbent, steps: int, out_of_time: OutOfTime) -> Incumbent:
        devices, _ = annealed(
            self._netlist,
            incumbent.devices,
            steps=steps,
            target_seconds=incumbent.bound_seconds,
            out_of_time=out_of_time,
            turn=self._turn,
        )
        self._turn += 1
        return improved(self._netlist, incumbent, devices)


class Programmes:
    """Integer programmes: of neighbourhoods, then of the whole, which may also prove."""

    def __init__(self, netlist: Netlist, first_turn: int = 0) -> None:
        self._netlist = netlist
        self._neighbourhoods = NeighbourhoodSearch(netlist, first_turn)

    @property
    def is_exhausted(self) -> bool:
        """What is left is the whole."""
        return self._neighbourhoods.is_exhausted

    @property
    def level(self) -> int:
        """Of the neighbourhoods: grows each time that a level of them was in vain."""
        return self._neighbourhoods.level

    def neighbourhoods(self, incumbent: Incumbent, attempts: int, questions: int, out_of_time: OutOfTime) -> Incumbent:
        """Each of `attempts` programmes may ask so many `questions`."""
        devices = self._neighbourhoods.improved(
            incumbent.devices, attempts=attempts, questions=questions, out_of_time=out_of_time
        )
        return improved(self._netlist, incumbent, devices)

    def whole(
        self,
        incumbent: Incumbent,
        questions: int,
        out_of_time: OutOfTime,
        enough: float = 1.0,
        on_question: OnQuestion = lambda is_branching: None,
    ) -> Incumbent:
        """Ends when it has gained `enough`, a share of the value."""
        if incumbent.is_proven or out_of_time():
            return incumbent
        answer = better_or_bound(
            self._netlist,
            incumbent.value_seconds,
            questions=questions,
            out_of_time=out_of_time,
            enough=enough,
            on_question=on_question,
        )
        return improved(self._netlist, incumbent, answer.devices, answer.lower_bound_seconds)
