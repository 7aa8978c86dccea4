"""The search that answers an objective, chosen by name."""

from __future__ import annotations

from planner.partition.objective import Objective
from planner.partition.placement.contiguous import best_contiguous
from planner.partition.placement.free import best_free
from planner.partition.placement.latency import best_latency
from planner.partition.placement.problem import OutOfTime, Placement, PlacementProblem, never

# Searches that a clock ends may take this many times their usual steps.
UNTIL_OUT_OF_TIME = 1000


def solve(
    problem: PlacementProblem, objective: Objective, *, contiguous: bool = False, out_of_time: OutOfTime = never
) -> Placement:
    """Throughput or latency. Raises Infeasible if no placement exists."""
    if objective is Objective.LATENCY:
        return best_latency(problem, contiguous=contiguous, out_of_time=out_of_time)
    best = best_contiguous(problem, out_of_time=out_of_time)
    return best if contiguous else best_free(problem, start=(best,), out_of_time=out_of_time)
