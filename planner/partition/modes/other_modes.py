"""What other modes find is a candidate: none of them is better on the asked objective than "optimal"."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from planner.errors import Infeasible, OptionsError
from planner.partition.assignment import Assignment
from planner.partition.modes.lone_batch import lone_batch
from planner.partition.modes.size_based import size_based
from planner.partition.modes.sparse_nn import sparse_nn
from planner.partition.objective import Objective
from planner.partition.portfolio.portfolio import Portfolio

# To look for a lone batch's latency takes about 0.1 ms for each node.
MAX_LATENCY_MODE_NODES = 20_000
MAX_OTHER_OBJECTIVES_NODES = 300


def offer_other_modes(portfolio: Portfolio) -> None:
    """The quick ones always, and all of them where nothing else was found."""
    problem, request = portfolio.problem, portfolio.request
    for_latency = request.objective is Objective.LATENCY
    most = (MAX_LATENCY_MODE_NODES if for_latency else MAX_OTHER_OBJECTIVES_NODES) * request.effort

    def for_a_lone_batch() -> Assignment:
        return lone_batch(problem, request, "optimal")

    modes: tuple[Callable[[], Assignment], ...] = (
        lambda: size_based(problem),
        lambda: sparse_nn(problem),
        for_a_lone_batch,
    )
    for mode in modes:
        if portfolio.is_over or (mode is for_a_lone_batch and portfolio.best is not None and problem.num_nodes > most):
            return
        with suppress(Infeasible, OptionsError):
            portfolio.offer(mode())
