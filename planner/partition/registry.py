"""Runs the mode that is asked for."""

from __future__ import annotations

import re
from dataclasses import replace

from planner.errors import Infeasible, OptionsError, PlannerError
from planner.partition.assignment import Assignment
from planner.partition.modes.table import MODES, Mode
from planner.partition.modes.v_shaped import v_shaped
from planner.partition.objective import V_SCHEDULES, Objective
from planner.partition.problem import PartitionProblem
from planner.partition.request import Request
from planner.partition.saturate_host import saturate_host


def partition(problem: PartitionProblem, request: Request) -> Assignment:
    """Deterministic. Raises OptionsError for what does not fit the problem, Infeasible if no assignment exists."""
    mode = _mode(request)
    is_v = problem.training is not None and problem.training.schedule in V_SCHEDULES and mode.chooses_stages
    try:
        assignment = v_shaped(problem, request) if is_v else mode.partition(problem, request)
    except (Infeasible, OptionsError) as error:
        raise _of_mode(request.mode, error) from None
    if request.saturate_host:
        assignment = saturate_host(problem, assignment)
    return assignment if _bound_holds(mode, request) else replace(assignment, lower_bound_seconds=None)


def _mode(request: Request) -> Mode:
    if request.mode not in MODES:
        raise OptionsError(f"mode {request.mode!r} is unknown; known are {', '.join(sorted(MODES))}")
    return request.options or MODES[request.mode]()


def _bound_holds(mode: Mode, request: Request) -> bool:
    throughput = request.objective is Objective.THROUGHPUT and not request.saturate_host
    return mode.bounds_any_objective or throughput


def _of_mode(mode: str, error: PlannerError) -> PlannerError:
    """Modes build on each other; what is said is about the one that was asked for."""
    reason = re.sub(r"^mode \w+: ", "", error.message)
    return type(error)(f"mode {mode}: {reason}", **error.metadata)
