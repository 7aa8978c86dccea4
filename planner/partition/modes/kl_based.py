"""Mode "kl_based": nodes of the size-based stages change places while that shortens a lone batch's latency.

After Kernighan and Lin (1970), as torch.fx's mode of that name; only moves that touch the longest path are looked at,
since no other can shorten it.
"""

from __future__ import annotations

import numpy as np

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


def kl_based(problem: PartitionProblem, request: Request) -> Assignment:
    """Raises Infeasible where nothing fits."""
    portfolio, bundles = latency_portfolio(problem, request), bundles_of(problem)
    operations = bundle_operations(problem, bundles)
    start = offer_first_fits(portfolio)
    offer_single_devices(portfolio)
    stages = np.array(start.stage_of_node, dtype=np.int64)
    devices = np.array(start.device_of_stage, dtype=np.int64)
    offer_placements(portfolio, bundles, operations, [operations.placed(bundles, stages, devices)])
    return best_of(portfolio, bundles, "kl_based")
