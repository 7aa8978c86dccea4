"""What modes "cost_aware" and "kl_based" share: placements offered for a lone batch's latency, judged by `evaluate`.

Single devices and the size-based stages compete on the true latency within true memory, and the best is improved on
those terms.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from planner.partition.assignment import Assignment
from planner.partition.infeasible import memory_shortage
from planner.partition.modes.size_based import size_based
from planner.partition.objective import Objective
from planner.partition.portfolio.cut_search import climb
from planner.partition.portfolio.portfolio import Portfolio
from planner.partition.portfolio.reasons import reasons
from planner.partition.problem import PartitionProblem
from planner.partition.program_orders import Bundles
from planner.partition.request import Request


def latency_portfolio(problem: PartitionProblem, request: Request) -> Portfolio:
    """Copies come afterwards: they do not help a lone batch."""
    latency_request = replace(request, objective=Objective.LATENCY, num_stages=0, replicate=False, saturate_host=False)
    return Portfolio(problem, latency_request)


def offer_first_fits(portfolio: Portfolio) -> Assignment:
    """The size-based stages, which are returned, and those that fill the quickest devices first. Raises Infeasible."""
    problem = portfolio.problem
    start = size_based(problem)
    portfolio.offer(start)
    speed = problem.compute_before[:, -1]
    order = sorted(range(problem.num_devices), key=lambda device: (float(speed[device]), device))
    if order != list(range(problem.num_devices)):
        quickest = size_based(problem.with_devices(np.array(order, dtype=np.int64)))
        devices = tuple(order[device] for device in quickest.device_of_stage)
        portfolio.offer(replace(quickest, device_of_stage=devices))
    return start


def best_of(portfolio: Portfolio, bundles: Bundles, mode: str) -> Assignment:
    """Improved; raises Infeasible if nothing fits."""
    if portfolio.best is None:
        raise memory_shortage(portfolio.problem, mode)
    if portfolio.best.assignment.num_stages > 1 or portfolio.problem.num_devices > 1:
        portfolio.keep(climb(portfolio.problem, bundles, portfolio.best, Objective.LATENCY))
    assert np.isfinite(portfolio.best.value)
    return replace(portfolio.best.assignment, reasons=reasons(portfolio.problem, portfolio.best))
