"""Every way to partition, by name: a new one is a file of its own and a line here."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from planner.errors import OptionsError
from planner.partition.assignment import Assignment
from planner.partition.balanced import balanced
from planner.partition.cut import cut
from planner.partition.optimal import optimal
from planner.partition.problem import PartitionProblem
from planner.partition.request import Request
from planner.partition.size_based import size_based

Algorithm = Callable[[PartitionProblem, Request], Assignment]

ALGORITHMS: Mapping[str, Algorithm] = {
    "balanced": lambda problem, request: balanced(problem, request.num_stages),
    "cut": lambda problem, request: cut(problem, request.module_paths),
    "optimal": optimal,
    "size_based": lambda problem, request: size_based(problem),
}


def partition(problem: PartitionProblem, request: Request) -> Assignment:
    """Deterministic. Raises OptionsError for what does not fit the problem, Infeasible if no assignment exists."""
    algorithm = ALGORITHMS.get(request.mode)
    if algorithm is None:
        raise OptionsError(f"mode {request.mode!r} is unknown; known are {', '.join(sorted(ALGORITHMS))}")
    return algorithm(problem, request)
