"""What each cut's next best alternative would cost: the answer to "why here and not a little further?"."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from planner.partition.assignment import Assignment, contiguous
from planner.partition.evaluate import Evaluation, evaluate
from planner.partition.ordered.positions import allowed_positions, crossing_bytes
from planner.partition.problem import Integers, PartitionProblem

# Positions that are evaluated for each cut: those whose two stages promise the least load.
CANDIDATES = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class NextBestCut:
    """With every other cut where it is, and this one before node `position`. None where no other position fits memory.

    `value` is the objective's then, in the objective's unit.
    """

    cut_index: int
    position: int | None
    value: float


def next_best_cuts(
    problem: PartitionProblem, assignment: Assignment, value_of: Callable[[Evaluation], float]
) -> tuple[NextBestCut, ...]:
    """One for each cut; empty where the stages are not segments of the program order. CANDIDATES evaluations a cut."""
    boundaries = _boundaries(assignment)
    if boundaries is None:
        return ()
    crossing = crossing_bytes(problem)
    return tuple(
        _next_best(problem, assignment, boundaries, cut, crossing, value_of) for cut in range(len(boundaries) - 2)
    )


def _boundaries(assignment: Assignment) -> tuple[int, ...] | None:
    stages = np.asarray(assignment.stage_of_node)
    if (np.diff(stages) < 0).any() or assignment.recomputed:
        return None
    return (*np.searchsorted(stages, np.arange(assignment.num_stages)).tolist(), stages.size)


def _next_best(
    problem: PartitionProblem,
    assignment: Assignment,
    boundaries: Sequence[int],
    cut: int,
    crossing: np.ndarray[tuple[int], np.dtype[np.float64]],
    value_of: Callable[[Evaluation], float],
) -> NextBestCut:
    best = NextBestCut(cut_index=cut, position=None, value=np.inf)
    for position in _candidates(problem, assignment, boundaries, cut, crossing).tolist():
        other = (*boundaries[: cut + 1], position, *boundaries[cut + 2 :])
        evaluation = evaluate(problem, _with_boundaries(problem, assignment, other))
        value = value_of(evaluation)
        if evaluation.fits(problem) and value < best.value:
            best = NextBestCut(cut_index=cut, position=position, value=value)
    return best


def _candidates(
    problem: PartitionProblem,
    assignment: Assignment,
    boundaries: Sequence[int],
    cut: int,
    crossing: np.ndarray[tuple[int], np.dtype[np.float64]],
) -> Integers:
    start, here, end = boundaries[cut : cut + 3]
    allowed = allowed_positions(problem)
    positions = allowed[(allowed > start) & (allowed < end) & (allowed != here)]
    one, other = assignment.device_of_stage[cut : cut + 2]
    transfer = crossing[positions] * problem.link_seconds_per_byte[one, other]
    before = problem.compute_before
    loads = np.maximum(
        before[one, positions] - before[one, start] + transfer, before[other, end] - before[other, positions] + transfer
    )
    nearest: Integers = positions[np.argsort(loads, kind="stable")[:CANDIDATES]]
    return nearest


def _with_boundaries(problem: PartitionProblem, assignment: Assignment, boundaries: Sequence[int]) -> Assignment:
    assert all(start < end for start, end in pairwise(boundaries))
    segments = contiguous(problem, boundaries, assignment.device_of_stage)
    return replace(assignment, stage_of_node=segments.stage_of_node, orders=())
