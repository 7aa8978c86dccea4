"""How good an assignment is for an objective, whether it fits, and which of two is to be preferred."""

from __future__ import annotations

import math
from dataclasses import dataclass

from planner.partition.assignment import Assignment
from planner.partition.evaluate import Evaluation, evaluate, objective_value
from planner.partition.objective import Objective
from planner.partition.problem import PartitionProblem
from planner.partition.saturate_host import saturate_host

# Values this close are one value: a search does not move for less.
NEGLIGIBLE = 1e-12


@dataclass(frozen=True, slots=True, kw_only=True)
class Scored:
    """`value` is the objective's: seconds, or for memory the fullest device's share. `loads`, descending, part ties.

    `fits`: every device has the bytes for its stages and can run their nodes.
    """

    assignment: Assignment
    evaluation: Evaluation
    value: float
    loads: tuple[float, ...]
    fits: bool

    def is_better_than(self, other: Scored | None) -> bool:
        """Fits, and has a lower value; or the same one with lower loads below the highest."""
        if not self.fits or other is None:
            return self.fits
        if abs(self.value - other.value) > NEGLIGIBLE * other.value:
            return self.value < other.value
        return self.loads < other.loads


def score(problem: PartitionProblem, assignment: Assignment, objective: Objective, *, saturate: bool = False) -> Scored:
    """With `saturate`, of the assignment with the copies that it gets on idle devices."""
    if saturate:
        assignment = saturate_host(problem, assignment)
    evaluation = evaluate(problem, assignment)
    loads = sorted(evaluation.device_load_seconds, reverse=True)
    return Scored(
        assignment=assignment,
        evaluation=evaluation,
        value=objective_value(evaluation, objective),
        # Rounded, so that sums in another order are no difference.
        loads=tuple(float(f"{load:.9g}") for load in loads),
        fits=evaluation.fits(problem) and math.isfinite(loads[0]),
    )
