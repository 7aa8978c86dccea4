"""Which stages of a training step keep their activations, and which compute them again before each backward pass.

A stage that has one microbatch at a time saves nothing by it, and keeps. Where they are computed again as needed, the
plan in which all stages keep is weighed against one that was sought with the room that recomputation makes, in which
each stage keeps that still fits, those first that it costs the most.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

from planner.errors import Infeasible
from planner.partition.assignment import Assignment
from planner.partition.evaluate import evaluate
from planner.partition.objective import Activations, Objective, Training
from planner.partition.problem import PartitionProblem
from planner.partition.score import score

Partition = Callable[[PartitionProblem], Assignment]


def partition_with_activations(problem: PartitionProblem, objective: Objective, partition: Partition) -> Assignment:
    """What `partition` finds, with the stages that keep their activations. Raises what `partition` raises.

    Nothing is proven where stages differ: bounds are of steps in which all keep, or none.
    """
    training = problem.training
    if training is None or training.activations is Activations.KEPT:
        return partition(problem)
    return replace(_partition(problem, training, objective, partition), lower_bound_seconds=None)


def _partition(problem: PartitionProblem, training: Training, objective: Objective, partition: Partition) -> Assignment:
    everywhere = replace(problem, training=replace(training, activations=Activations.RECOMPUTED))
    if training.activations is Activations.RECOMPUTED:
        return _keeping_where_nothing_is_saved(problem, partition(everywhere))
    all_keep = None
    with suppress(Infeasible):
        all_keep = _keeping_all(partition(replace(problem, training=replace(training, activations=Activations.KEPT))))
    try:
        assignment = partition(everywhere)
    except Infeasible:
        if all_keep is None:
            raise
        return all_keep
    assignment = _keeping_what_fits(problem, objective, assignment)
    if all_keep is None or score(problem, assignment, objective).is_better_than(score(problem, all_keep, objective)):
        return assignment
    return all_keep


def _keeping_where_nothing_is_saved(problem: PartitionProblem, assignment: Assignment) -> Assignment:
    again, without_recomputation = (
        evaluate(problem, assignment).stages,
        evaluate(problem, _keeping_all(assignment)).stages,
    )
    stages = range(assignment.num_stages)
    return replace(
        assignment,
        keeping=tuple(one for one in stages if without_recomputation[one].peak_bytes <= again[one].peak_bytes),
    )


def _keeping_what_fits(problem: PartitionProblem, objective: Objective, assignment: Assignment) -> Assignment:
    """One evaluation a stage."""
    stages = evaluate(problem, assignment).stages
    for stage in sorted(range(assignment.num_stages), key=lambda stage: (-stages[stage].compute_seconds, stage)):
        with_one_more = replace(assignment, keeping=tuple(sorted((*assignment.keeping, stage))))
        if score(problem, with_one_more, objective).fits:
            assignment = with_one_more
    return assignment


def _keeping_all(assignment: Assignment) -> Assignment:
    return replace(assignment, keeping=tuple(range(assignment.num_stages)))
