"""The search that answers an objective, chosen by name."""

from __future__ import annotations

from planner.errors import Infeasible
from planner.partition.objective import Objective
from planner.partition.placement.contiguous import best_contiguous
from planner.partition.placement.free import DEFAULT_EFFORT, best_free
from planner.partition.placement.latency import best_latency
from planner.partition.placement.problem import OutOfTime, Placement, PlacementProblem, never

# Searches that a clock ends may take this many times their usual steps.
UNTIL_OUT_OF_TIME = 1_000_000


def solve(
    problem: PlacementProblem, objective: Objective, *, contiguous: bool = False, out_of_time: OutOfTime = never
) -> Placement:
    """Throughput or latency. Raises Infeasible if no placement exists."""
    if objective is Objective.LATENCY:
        return best_latency(problem, contiguous=contiguous, out_of_time=out_of_time)
    if contiguous:
        return best_contiguous(problem, out_of_time=out_of_time)
    effort = DEFAULT_EFFORT * (1 if out_of_time is never else UNTIL_OUT_OF_TIME)
    start = contiguous_start(problem, out_of_time)
    return best_free(problem, start=start, effort=effort, out_of_time=out_of_time)


def contiguous_start(problem: PlacementProblem, out_of_time: OutOfTime) -> tuple[Placement, ...]:
    """A free placement may exist where no contiguous one does."""
    try:
        return (best_contiguous(problem, out_of_time=out_of_time),)
    except Infeasible:
        return ()
