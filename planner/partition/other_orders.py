"""Segments of other orders in which the program could run: what a cut of the program order cannot part."""

from __future__ import annotations

import numpy as np

from planner.partition.assignment import Assignment
from planner.partition.ordered_pass import ordered_pass
from planner.partition.portfolio import Portfolio
from planner.partition.positions import few_positions
from planner.partition.program_orders import Bundles, program_orders, reordered

# Larger programs are searched in their own order alone.
MAX_REORDERED_NODES = 800
OTHER_ORDERS_POSITIONS = 80


def offer_other_orders(found: Portfolio, bundles: Bundles) -> None:
    problem, request = found.problem, found.request
    if found.is_proven or problem.num_nodes > MAX_REORDERED_NODES * request.effort:
        return
    for order in program_orders(problem, bundles):
        shared = ordered_pass(reordered(problem, order, bundles), request.num_stages)
        solution = shared.search(few_positions(shared.problem, OTHER_ORDERS_POSITIONS))
        layout = shared.layout(solution.boundaries, solution.classes)
        if layout is not None:
            stages = np.repeat(np.arange(len(layout.devices)), np.diff(layout.boundaries))
            stage_of_node = np.empty(problem.num_nodes, dtype=np.int64)
            stage_of_node[order] = stages
            found.offer(
                Assignment(
                    stage_of_node=tuple(stage_of_node.tolist()),
                    device_of_stage=layout.devices,
                    reasons=("",) * len(layout.devices),
                )
            )
