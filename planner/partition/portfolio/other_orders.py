"""Segments of other orders in which the program could run: what a cut of the program order cannot part."""

from __future__ import annotations

import numpy as np

from planner.partition.assignment import Assignment
from planner.partition.objective import Objective
from planner.partition.ordered.host_windows import over_windows
from planner.partition.ordered.hosts import hosts_of
from planner.partition.ordered.many_devices import over_many_devices
from planner.partition.ordered.positions import allowed_positions, few_positions, near_positions
from planner.partition.ordered.program_pass import ordered_pass
from planner.partition.portfolio.portfolio import Portfolio
from planner.partition.problem import Integers, PartitionProblem
from planner.partition.program_orders import program_orders, reordered

# Larger programs are searched in their own order alone.
MAX_REORDERED_NODES = 800
OTHER_ORDERS_POSITIONS = 80


def offer_other_orders(portfolio: Portfolio) -> None:
    problem, request, bundles = portfolio.problem, portfolio.request, portfolio.bundles
    if problem.num_nodes > MAX_REORDERED_NODES * request.effort:
        return
    for order in program_orders(problem, bundles):
        if portfolio.best is not None and request.out_of_time():
            return
        in_order = reordered(problem, order, bundles)
        shared = ordered_pass(in_order, request.num_stages)
        if not shared.complete:
            _offer_many_devices(portfolio, in_order, order)
            continue
        allowed = allowed_positions(shared.problem)
        coarse = shared.search(few_positions(shared.problem, OTHER_ORDERS_POSITIONS))
        solutions = [coarse]
        if coarse.boundaries and coarse.value < portfolio.limit and allowed.size > OTHER_ORDERS_POSITIONS:
            near = near_positions(allowed, coarse.boundaries, OTHER_ORDERS_POSITIONS)
            solutions.append(shared.search(near, coarse.value))
        for solution in solutions:
            layout = shared.layout(solution.boundaries, solution.classes)
            if layout is not None:
                portfolio.offer(_in_order(layout.boundaries, layout.devices, order))


def _offer_many_devices(portfolio: Portfolio, in_order: PartitionProblem, order: Integers) -> None:
    limit, num_stages = np.inf, portfolio.request.num_stages
    if portfolio.request.objective is Objective.THROUGHPUT:
        limit = portfolio.limit
    if hosts_of(in_order).count > 1 and not (num_stages or in_order.relay):
        # Both ends on one host are tried over the program order alone: over others they took ten seconds for 0.1 %.
        layouts = over_windows(in_order, limit, both_ends=False)
    else:
        positions = few_positions(in_order, OTHER_ORDERS_POSITIONS)
        walks = over_many_devices(in_order, positions, limit=limit, num_stages=num_stages)
        layouts = list(walks.layouts) if walks is not None else []
    for boundaries, devices in layouts:
        portfolio.offer(_in_order(boundaries, devices, order))


def _in_order(boundaries: tuple[int, ...], devices: tuple[int, ...], order: Integers) -> Assignment:
    stage_of_node = np.empty(order.size, dtype=np.int64)
    stage_of_node[order] = np.repeat(np.arange(len(devices)), np.diff(boundaries))
    return Assignment(
        stage_of_node=tuple(stage_of_node.tolist()), device_of_stage=devices, reasons=("",) * len(devices)
    )
