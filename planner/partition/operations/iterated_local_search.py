"""Restarts of the local search from its best placements, a few operations moved at random by a fixed generator."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from planner.partition.operations.occupancy import Occupancy
from planner.partition.operations.path_search import LEAST_GAIN, Steps, apply, improve
from planner.partition.operations.transfer_problem import TransferProblem

_SEED = 20201
_TRIES = 20


def iterate(
    problem: TransferProblem, placements: Sequence[tuple[float, list[int]]], steps: Steps, goal: float
) -> tuple[float, list[int]]:
    """The best that is found until the steps are spent. The same on any machine."""
    best = placements[0]
    random, turn = Random(_SEED), 0
    while steps.left > 0 and best[0] > goal * (1 + LEAST_GAIN):
        _, device = best if turn % 2 == 0 else placements[turn // 2 % len(placements)]
        turn += 1
        steps.spend(problem.num_operations)
        occupancy = Occupancy(problem, device)
        if not _disturb(problem, occupancy, random):
            continue
        value = improve(problem, occupancy, steps, goal)
        if value < best[0]:
            best = (value, list(occupancy.device))
    return best


def _disturb(problem: TransferProblem, occupancy: Occupancy, random: Random) -> bool:
    """Moves or trades a few operations, as far as memory allows."""
    n, devices = problem.num_operations, len(problem.capacities)
    goal, num_moved = 1 + random.randrange(4), 0
    for _ in range(_TRIES):
        one, other = random.randrange(n), random.randrange(n)
        home, there = occupancy.device[one], occupancy.device[other]
        if home != there and random.random() < 0.5:
            move = ((one, there), (other, home))
        else:
            move = ((one, random.randrange(devices)),)  # type: ignore[assignment]
        back = apply(occupancy, move)
        if occupancy.fitting():
            num_moved += 1
        else:
            apply(occupancy, back)
        if num_moved == goal:
            return True
    return num_moved > 0
