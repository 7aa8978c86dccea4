"""Mode "cost_aware": least latency of a lone batch, transfers included.

torch.fx's mode of that name joins the best of all pairs of partitions, again and again, which takes n^4 and more. Here
single devices and the size-based stages compete, and cuts, devices and nodes of the best change while that helps.
"""

from __future__ import annotations

from planner.partition.assignment import Assignment
from planner.partition.modes.lone_batch import (
    best_of,
    latency_portfolio,
    offer_first_fits,
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
    return best_of(portfolio, bundles, "cost_aware")
