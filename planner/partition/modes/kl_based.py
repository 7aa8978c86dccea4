"""Mode "kl_based": nodes of the size-based stages change places while that shortens a lone batch's latency.

After Kernighan and Lin (1970), as torch.fx's mode of that name.
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


def kl_based(problem: PartitionProblem, request: Request) -> Assignment:
    """Raises Infeasible where nothing fits."""
    portfolio, bundles = latency_portfolio(problem, request), bundles_of(problem)
    offer_first_fits(portfolio)
    offer_single_devices(portfolio)
    return best_of(portfolio, bundles, "kl_based")
