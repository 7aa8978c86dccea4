"""The searches of a free placement by turns in this process, without the two that `solve` starts."""

from __future__ import annotations

from itertools import count

from planner.cost_graphs.placement.free import (
    Annealing,
    Incumbent,
    Programmes,
    first_incumbent,
    placement_of,
    steps_of_question,
)
from planner.cost_graphs.placement.infeasible import check_can_exist
from planner.cost_graphs.placement.netlists.netlist import Netlist, netlist_of
from planner.cost_graphs.placement.problem import Placement, PlacementProblem
from planner.partition.out_of_time import OutOfTime, never

_DEFAULT_EFFORT = 4_000_000
_FIRST_TURN_STEPS, _MOST_DOUBLINGS = 4_000_000, 5
_LEAST_QUESTIONS = 20
_STEPS_PER_NEIGHBOURHOOD = 1_000_000


def best_free(problem: PlacementProblem, *, effort: int = _DEFAULT_EFFORT, out_of_time: OutOfTime = never) -> Placement:
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
            best = _by_programmes(netlist, programmes, best, steps, out_of_time)
        if left <= 0 or out_of_time() or best.is_proven:
            break
    return placement_of(problem, netlist, best)


def _by_programmes(
    netlist: Netlist, programmes: Programmes, best: Incumbent, steps: int, out_of_time: OutOfTime
) -> Incumbent:
    """`steps`: of annealing, which take about as long."""
    questions = max(_LEAST_QUESTIONS, steps // steps_of_question(netlist))
    if not best.is_proven:
        best = programmes.neighbourhoods(best, -(-steps // _STEPS_PER_NEIGHBOURHOOD), questions, out_of_time)
    return programmes.whole(best, questions, out_of_time)
