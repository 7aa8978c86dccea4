"""The two searches of a free placement, by turns: each takes the best in hand and gives back one no worse."""

from __future__ import annotations

from dataclasses import dataclass

from planner.partition.placement.netlists.annealing import annealed
from planner.partition.placement.netlists.milp import OnQuestion, better_or_bound, num_columns
from planner.partition.placement.netlists.neighbourhoods import NeighbourhoodSearch
from planner.partition.placement.netlists.netlist import Netlist, loads_of
from planner.partition.placement.netlists.packing import fits
from planner.partition.placement.problem import OutOfTime
from planner.partition.problem import Integers

# A question of the programme takes about the square of its columns.
_SQUARED_COLUMNS_PER_STEP = 16
_LEAST_QUESTIONS = 20
_STEPS_PER_NEIGHBOURHOOD = 1_000_000
# A value this close to the bound, as a share, is taken for it.
AS_GOOD = 3e-6


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

    def turn(self, incumbent: Incumbent, steps: int, out_of_time: OutOfTime) -> Incumbent:
        """`steps`: of annealing, which take about as long."""
        questions = max(_LEAST_QUESTIONS, steps // steps_of_question(self._netlist))
        if not incumbent.is_proven:
            incumbent = self.neighbourhoods(incumbent, -(-steps // _STEPS_PER_NEIGHBOURHOOD), questions, out_of_time)
        return self.whole(incumbent, questions, out_of_time)

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
