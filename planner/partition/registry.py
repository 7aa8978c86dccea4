"""Every way to partition, by name: a new one is a file of its own and a line here."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from planner.errors import OptionsError
from planner.partition.aot_based import aot_based
from planner.partition.assignment import Assignment
from planner.partition.balanced import balanced
from planner.partition.cost_aware import cost_aware
from planner.partition.cut import cut
from planner.partition.kl_based import kl_based
from planner.partition.optimal import optimal
from planner.partition.problem import PartitionProblem
from planner.partition.request import Request
from planner.partition.saturate_host import saturate_host
from planner.partition.single import single
from planner.partition.size_based import size_based
from planner.partition.sparse_nn import sparse_nn

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


def partition(problem: PartitionProblem, request: Request) -> Assignment:
    """Deterministic. Raises OptionsError for what does not fit the problem, Infeasible if no assignment exists."""
    algorithm = ALGORITHMS.get(request.mode)
    if algorithm is None:
        raise OptionsError(f"mode {request.mode!r} is unknown; known are {', '.join(sorted(ALGORITHMS))}")
    found = algorithm(problem, request)
    return saturate_host(problem, found) if request.saturate_host else found
