"""Segments of the program order that make latency or memory least: the ordered pass with another load than seconds.

Over few positions first, then over all those near the cuts found, again and again while that helps.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from planner.partition.assignment import contiguous
from planner.partition.objective import Objective
from planner.partition.ordered.binding_memory import without_idle_memory
from planner.partition.ordered.device_classes import device_classes
from planner.partition.ordered.memory_tiers import in_memory_tiers
from planner.partition.ordered.positions import allowed_positions, few_positions, near_positions
from planner.partition.ordered.program_pass import OrderedPass, ordered_pass
from planner.partition.ordered.search import Solution
from planner.partition.ordered.state_space import num_counted_states
from planner.partition.portfolio.portfolio import Portfolio
from planner.partition.problem import Integers, PartitionProblem

# Elements of the tables of steps, starts and ends of one pass.
_MAX_ELEMENTS = 1.5e7
_MIN_POSITIONS, _MAX_POSITIONS = 24, 160
_ROUNDS = 6
_MAX_TIERED_STATES = 256


def offer_ordered(portfolio: Portfolio) -> None:
    """For latency or memory."""
    problem, request = portfolio.problem, portfolio.request
    latency = request.objective is Objective.LATENCY
    passes = [ordered_pass(without_idle_memory(problem) if latency else problem, request.num_stages)]
    if not passes[0].complete:
        tiered = in_memory_tiers(problem, _is_small, round_up=False)
        passes += [ordered_pass(tiered, request.num_stages)] if tiered is not None else []
    for shared in passes:
        solution = _refined(shared, shared.least_path if latency else shared.least_share)
        if solution.boundaries:
            devices = shared.devices_of(solution.classes)
            portfolio.offer(contiguous(problem, solution.boundaries, devices, ("",) * len(devices)))


def _is_small(problem: PartitionProblem) -> bool:
    return num_counted_states(device_classes(problem)) <= _MAX_TIERED_STATES


def _refined(shared: OrderedPass, solve: Callable[[Integers], Solution]) -> Solution:
    allowed, count = allowed_positions(shared.problem), _affordable(shared)
    positions = few_positions(shared.problem, count)
    best = solve(positions)
    for _ in range(_ROUNDS if positions.size < allowed.size and best.boundaries else 0):
        positions = near_positions(allowed, best.boundaries, count)
        solution = solve(positions)
        if not solution.value < best.value:
            break
        best = solution
    return best


def _affordable(shared: OrderedPass) -> int:
    return int(np.clip((2 * _MAX_ELEMENTS / max(1, shared.space.source.size)) ** 0.5, _MIN_POSITIONS, _MAX_POSITIONS))
