"""What other modes find is a candidate: none of them is better on the asked objective than "optimal"."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from planner.errors import Infeasible, OptionsError
from planner.partition.assignment import Assignment
from planner.partition.modes.cost_aware import cost_aware
from planner.partition.modes.kl_based import kl_based
from planner.partition.modes.size_based import size_based
from planner.partition.modes.sparse_nn import sparse_nn
from planner.partition.objective import Objective
from planner.partition.portfolio.portfolio import Portfolio

# Those that look for a lone batch's latency take about 0.1 ms for each node.
MAX_LATENCY_MODES_NODES = 20_000
MAX_OTHER_OBJECTIVES_NODES = 300


def offer_other_modes(portfolio: Portfolio) -> None:
    """The quick ones always, and all of them where nothing else was found."""
    problem, request = portfolio.problem, portfolio.request
    quick: tuple[Callable[[], Assignment], ...] = (lambda: size_based(problem), lambda: sparse_nn(problem))
    latency: tuple[Callable[[], Assignment], ...] = (
        lambda: cost_aware(problem, request),
        lambda: kl_based(problem, request),
    )
    for_latency = request.objective is Objective.LATENCY
    most = (MAX_LATENCY_MODES_NODES if for_latency else MAX_OTHER_OBJECTIVES_NODES) * request.effort
    for mode in (*quick, *latency):
        if portfolio.is_over or (mode in latency and portfolio.best is not None and problem.num_nodes > most):
            return
        with suppress(Infeasible, OptionsError):
            portfolio.offer(mode())
