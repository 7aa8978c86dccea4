"""Modes "cost_aware" and "kl_based": least latency of a lone batch, transfers included.

torch.fx's modes of these names differ in how they search. The first joins the best of all pairs of partitions, again
and again, which takes n^4 and more; the second moves nodes between size-based partitions after Kernighan and Lin
(1970), by a model of bytes and paths. Both are the same search here: single devices and the size-based stages compete
on the true latency within true memory, and cuts, devices and nodes of the best change while that helps.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

import numpy as np

from planner.errors import Infeasible
from planner.partition.assignment import Assignment
from planner.partition.infeasible import memory_shortage
from planner.partition.modes.single import offer_single_devices
from planner.partition.modes.size_based import any_fit, size_based
from planner.partition.objective import Objective
from planner.partition.portfolio.cut_search import climb
from planner.partition.portfolio.portfolio import Portfolio
from planner.partition.portfolio.reasons import reasons
from planner.partition.problem import PartitionProblem
from planner.partition.request import Request


def lone_batch(
    problem: PartitionProblem,
    request: Request,
    mode: str,
    otherwise: Callable[[PartitionProblem], Assignment] = any_fit,
) -> Assignment:
    """`mode` is who asks; `otherwise` is asked where first fit runs out of devices. Raises Infeasible where nothing
    fits."""
    # Copies come afterwards: they do not help a lone batch.
    latency_request = replace(request, objective=Objective.LATENCY, num_stages=0, replicate=False, saturate_host=False)
    portfolio = Portfolio(problem, latency_request)
    offer_single_devices(portfolio)
    _offer_first_fits(portfolio, otherwise)
    return _improved(portfolio, mode)


def _offer_first_fits(portfolio: Portfolio, otherwise: Callable[[PartitionProblem], Assignment]) -> None:
    """The size-based stages, and those that fill the quickest devices first. Raises Infeasible."""
    problem = portfolio.problem
    portfolio.offer(size_based(problem, otherwise))
    seconds = problem.compute_before[:, -1]
    order = sorted(range(problem.num_devices), key=lambda device: (float(seconds[device]), device))
    if order != list(range(problem.num_devices)):
        with suppress(Infeasible):
            quickest = size_based(problem.with_devices(np.array(order, dtype=np.int64)), _nothing_else)
            devices = tuple(order[device] for device in quickest.device_of_stage)
            portfolio.offer(replace(quickest, device_of_stage=devices))


def _nothing_else(problem: PartitionProblem) -> Assignment:
    """What is taken where first fit runs out of devices is the same for every order of them."""
    raise Infeasible("first fit runs out of devices")


def _improved(portfolio: Portfolio, mode: str) -> Assignment:
    if portfolio.best is None:
        raise memory_shortage(portfolio.problem, mode)
    if portfolio.best.assignment.num_stages > 1 or portfolio.problem.num_devices > 1:
        portfolio.keep(climb(portfolio, portfolio.best))
    assert np.isfinite(portfolio.best.value)
    return replace(portfolio.best.assignment, reasons=reasons(portfolio.problem, portfolio.best))
