"""Training steps of the best plans in hand, with their cuts and devices moved: each plan in the order of its stages."""

from __future__ import annotations

import numpy as np

from planner.partition.ordered.cut_moves import with_cuts_moved
from planner.partition.portfolio.cut_search import Line
from planner.partition.portfolio.orders import in_order
from planner.partition.portfolio.portfolio import Portfolio
from planner.partition.program_orders import reordered


def offer_moved_cuts(portfolio: Portfolio) -> None:
    """Of several: where annealing ends depends on where it begins, by one to three percent."""
    problem, request, bundles = portfolio.problem, portfolio.request, portfolio.bundles
    starts = [] if portfolio.best is None else [portfolio.best, *portfolio.runners_up]
    for start in starts:
        if request.out_of_time():
            return
        order = np.argsort(Line(bundles, start.assignment).place_of_node, kind="stable")
        stages = np.asarray(start.assignment.stage_of_node, dtype=np.int64)[order]
        inner = np.flatnonzero(np.diff(stages)) + 1
        boundaries, devices = with_cuts_moved(
            reordered(problem, order, bundles),
            np.concatenate([[0], inner, [problem.num_nodes]]),
            np.array(start.assignment.device_of_stage, dtype=np.int64),
            keeps_count=request.num_stages > 0,
            effort=request.effort,
            out_of_time=request.out_of_time,
        )
        portfolio.offer(in_order(tuple(boundaries.tolist()), tuple(devices.tolist()), order))
