"""Every way to partition, by name: a new one is a file of its own and a line here."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace

from planner.errors import Infeasible, OptionsError, PlannerError
from planner.partition.assignment import Assignment
from planner.partition.modes.aot_based import aot_based
from planner.partition.modes.balanced import balanced
from planner.partition.modes.cost_aware import cost_aware
from planner.partition.modes.cut import cut
from planner.partition.modes.kl_based import kl_based
from planner.partition.modes.optimal import optimal
from planner.partition.modes.saturate_host import saturate_host
from planner.partition.modes.single import single
from planner.partition.modes.size_based import size_based
from planner.partition.modes.sparse_nn import sparse_nn
from planner.partition.modes.v_shaped import v_shaped
from planner.partition.objective import V_SCHEDULES, Objective
from planner.partition.problem import PartitionProblem
from planner.partition.request import Request

Algorithm = Callable[[PartitionProblem, Request], Assignment]

ALGORITHMS: Mapping[str, Algorithm] = {
    "aot_based": lambda problem, request: aot_based(problem, request.partition_of_node, request.device_of_partition),
    "balanced": lambda problem, request: balanced(problem, request.num_stages),
    "cost_aware": cost_aware,
    "cut": lambda problem, request: cut(problem, request.module_paths),
    "kl_based": kl_based,
    "optimal": optimal,
    "single": lambda problem, request: single(problem),
    "size_based": lambda problem, request: size_based(problem),
    "sparse_nn": lambda problem, request: sparse_nn(problem),
}


# Modes that may choose how many stages there are and where they stand.
_FREE_TO_PLACE = ("optimal", "balanced")


def partition(problem: PartitionProblem, request: Request) -> Assignment:
    """Deterministic. Raises OptionsError for what does not fit the problem, Infeasible if no assignment exists."""
    algorithm = ALGORITHMS.get(request.mode)
    if algorithm is None:
        raise OptionsError(f"mode {request.mode!r} is unknown; known are {', '.join(sorted(ALGORITHMS))}")
    if problem.training and problem.training.schedule in V_SCHEDULES and request.mode in _FREE_TO_PLACE:
        algorithm = v_shaped
    try:
        found = algorithm(problem, request)
    except (Infeasible, OptionsError) as error:
        raise _of_mode(request.mode, error) from None
    if request.saturate_host:
        found = saturate_host(problem, found)
    return found if _bound_holds(request) else replace(found, lower_bound_seconds=None)


def _bound_holds(request: Request) -> bool:
    """Modes other than "optimal" bound the bottleneck of stages that run once, whatever is asked for."""
    return request.mode == "optimal" or (request.objective is Objective.THROUGHPUT and not request.saturate_host)


def _of_mode(mode: str, error: PlannerError) -> PlannerError:
    """Modes build on each other; what is said is about the one that was asked for."""
    said = re.sub(r"^mode \w+: ", "", error.message)
    return type(error)(f"mode {mode}: {said}", **error.metadata)
