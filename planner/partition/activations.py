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
    kept = None
    with suppress(Infeasible):
        kept = _keeping_all(partition(replace(problem, training=replace(training, activations=Activations.KEPT))))
    try:
        found = partition(everywhere)
    except Infeasible:
        if kept is None:
            raise
        return kept
    found = _keeping_what_fits(problem, objective, found)
    if kept is None or score(problem, found, objective).is_better_than(score(problem, kept, objective)):
        return found
    return kept


def _keeping_where_nothing_is_saved(problem: PartitionProblem, found: Assignment) -> Assignment:
    again, kept = evaluate(problem, found).stages, evaluate(problem, _keeping_all(found)).stages
    stages = range(found.num_stages)
    return replace(found, keeping=tuple(one for one in stages if kept[one].peak_bytes <= again[one].peak_bytes))


def _keeping_what_fits(problem: PartitionProblem, objective: Objective, found: Assignment) -> Assignment:
    """One evaluation a stage."""
    stages = evaluate(problem, found).stages
    for stage in sorted(range(found.num_stages), key=lambda stage: (-stages[stage].compute_seconds, stage)):
        asked = replace(found, keeping=tuple(sorted((*found.keeping, stage))))
        if score(problem, asked, objective).fits:
            found = asked
    return found


def _keeping_all(found: Assignment) -> Assignment:
    return replace(found, keeping=tuple(range(found.num_stages)))
