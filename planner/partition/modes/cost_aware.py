"""Mode "cost_aware": what transfers most on a lone batch's longest path is joined, while memory lasts.

torch.fx's mode of that name joins the best of all pairs of partitions, again and again, which takes n^4 and more. Here
edges on the longest path of the time are joined, by what they transfer (Sarkar 1989), and the outcome refined.
"""

from __future__ import annotations

from planner.partition.assignment import Assignment
from planner.partition.modes.bundle_operations import bundle_operations
from planner.partition.modes.lone_batch import (
    best_of,
    latency_portfolio,
    offer_first_fits,
    offer_placements,
)
from planner.partition.modes.single import offer_single_devices
from planner.partition.problem import PartitionProblem
from planner.partition.program_orders import bundles_of
from planner.partition.request import Request


def cost_aware(problem: PartitionProblem, request: Request) -> Assignment:
    """Raises Infeasible where nothing fits."""
    portfolio, bundles = latency_portfolio(problem, request), bundles_of(problem)
    offer_single_devices(portfolio)
    offer_first_fits(portfolio)
    offer_placements(portfolio, bundles, bundle_operations(problem, bundles), [])
    return best_of(portfolio, bundles, "cost_aware")
