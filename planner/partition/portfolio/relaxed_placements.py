"""What the additive relaxation's placements are worth in truth, and what they prove."""

from __future__ import annotations

import numpy as np

from planner.errors import Infeasible
from planner.partition.objective import Objective
from planner.partition.placement.contiguous import best_contiguous
from planner.partition.placement.free import best_free
from planner.partition.portfolio.lift import one_stage_each, stages_by_level
from planner.partition.portfolio.portfolio import Portfolio
from planner.partition.portfolio.relaxation import relaxed
from planner.partition.problem import Integers, PartitionProblem
from planner.partition.program_orders import Bundles
from planner.partition.request import Request

MAX_RELAXED_NODES = 600
MAX_IDEAL_PAIRS = 6_000_000
# Steps of annealing: at most, and by pairs of nodes.
MAX_FREE_STEPS, FREE_STEPS_PER_PAIR = 4_000_000, 500
# Of each device's memory, what the relaxation may fill with states, in turn.
ROOM_SHARES = (1.0, 0.85, 0.6)


def offer_relaxed_placements(portfolio: Portfolio) -> None:
    """The additive problem's placements, at last with room for what flows."""
    problem, request, bundles = portfolio.problem, portfolio.request, portfolio.bundles
    if request.num_stages or problem.num_nodes > MAX_RELAXED_NODES * request.effort:
        return
    for room_share in ROOM_SHARES:
        device_of_node, bound = _placed(problem, bundles, request, room_share)
        if room_share == 1.0 and request.objective is Objective.THROUGHPUT and not portfolio.has_copies:
            portfolio.prove(bound)
        if device_of_node is None:
            return
        assignment = (
            stages_by_level(problem, bundles, device_of_node)
            if request.free
            else one_stage_each(problem, bundles, device_of_node)
        )
        scored = portfolio.offer(assignment)
        if scored is None or scored.fits:
            return


def _placed(
    problem: PartitionProblem, bundles: Bundles, request: Request, room_share: float
) -> tuple[Integers | None, float]:
    """Device of each node and a bound; None where the relaxation has no placement, or none was found."""
    relaxation = relaxed(problem, bundles, room_share)
    try:
        if request.free:
            steps = int(min(MAX_FREE_STEPS, FREE_STEPS_PER_PAIR * problem.num_nodes**2) * request.effort)
            placement = best_free(relaxation.placement, effort=steps, out_of_time=request.out_of_time)
        else:
            pairs = int(MAX_IDEAL_PAIRS * request.effort)
            placement = best_contiguous(relaxation.placement, max_pairs=pairs, out_of_time=request.out_of_time)
    except Infeasible:
        return None, 0.0
    bound = placement.lower_bound_seconds * (1 - 1e-9)
    return relaxation.devices[np.array(placement.device_of_node, dtype=np.int64)], bound
