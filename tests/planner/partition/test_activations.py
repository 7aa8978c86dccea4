"""Stages that compute their activations again: what that costs and saves by hand, and which stages do."""

from __future__ import annotations

from dataclasses import replace
from itertools import chain as joined
from itertools import combinations

import pytest
from hypothesis import given

from planner.errors import Infeasible, OptionsError
from planner.partition.activations import partition_with_activations
from planner.partition.assignment import Assignment, contiguous
from planner.partition.evaluate import evaluate
from planner.partition.modes.balanced import balanced
from planner.partition.objective import UNSPLIT_SCHEDULES, Activations, Objective, PipelineSchedule, Training
from planner.partition.problem import PartitionProblem
from planner.partition.score import score
from tests.planner.partition.problems import chain, problems, trainings
from tests.random_examples import random_examples


def trained(activations: Activations, memory_bytes: int = 1 << 40) -> PartitionProblem:
    """Two stages of two nodes: values of 100 bytes inside each, of 10 between them."""
    return chain(
        [[1.0, 1.0, 1.0, 1.0]] * 2,
        value_bytes=[10, 100, 10, 100, 10],
        states=[(1, (0,)), (1, (2,))],
        memory_bytes=[memory_bytes] * 2,
        training=Training(schedule=PipelineSchedule.GPIPE, microbatches=5, activations=activations),
    )


def halves(problem: PartitionProblem) -> Assignment:
    return contiguous(problem, (0, 2, 4), (0, 1), ["", ""])


def test_a_stage_saves_what_it_was_given_and_pays_a_forward_pass() -> None:
    kept, again = (
        evaluate(trained(one), halves(trained(one))).stages[0] for one in (Activations.KEPT, Activations.RECOMPUTED)
    )
    assert (kept.saved_bytes, again.saved_bytes) == (5 * (10 + 110), 5 * 10)
    assert again.activation_bytes == kept.activation_bytes + 110
    assert (kept.backward_seconds, again.backward_seconds) == (4.0, 6.0)
    assert (kept.recomputes_activations, again.recomputes_activations) == (False, True)
    problem = trained(Activations.RECOMPUTED)
    first, second = evaluate(problem, replace(halves(problem), keeping=(0,))).stages
    assert first == kept
    assert second.recomputes_activations


def found(problem: PartitionProblem) -> Assignment:
    return partition_with_activations(problem, Objective.STEP_TIME, lambda problem: balanced(problem, 2))


def test_as_needed_means_only_where_memory_lacks() -> None:
    plenty = found(trained(Activations.AS_NEEDED))
    assert plenty.keeping == (0, 1)
    needed = max(stage.peak_bytes for stage in evaluate(trained(Activations.KEPT), plenty).stages)
    with pytest.raises(Infeasible):
        found(trained(Activations.KEPT, needed - 1))
    tight = trained(Activations.AS_NEEDED, needed - 1)
    assert found(tight).keeping != (0, 1)
    assert score(tight, found(tight), Objective.STEP_TIME).fits
    with pytest.raises(Infeasible):
        found(trained(Activations.AS_NEEDED, 200))


def test_a_stage_that_has_one_microbatch_at_a_time_keeps() -> None:
    problem = trained(Activations.RECOMPUTED)
    assert problem.training is not None
    assert found(problem).keeping == ()
    turns = replace(problem, training=replace(problem.training, schedule=PipelineSchedule.ONE_F_ONE_B))
    assert found(turns).keeping == (1,)


@random_examples(15)
@given(problems(max_nodes=6, max_devices=3, training=trainings))
def test_no_choice_of_stages_that_keep_is_better(problem: PartitionProblem) -> None:
    """Of those for the stages that were found, with a device of its own for each: then no choice bears on another."""
    assert problem.training is not None
    if problem.training.schedule not in UNSPLIT_SCHEDULES:
        return
    as_needed = replace(problem, training=replace(problem.training, activations=Activations.AS_NEEDED))
    try:
        assignment = partition_with_activations(as_needed, Objective.THROUGHPUT, balanced)
    except Infeasible:
        return
    stages = range(assignment.num_stages)
    best = score(as_needed, assignment, Objective.THROUGHPUT)
    for keeping in joined.from_iterable(combinations(stages, size) for size in range(assignment.num_stages + 1)):
        assert not score(as_needed, replace(assignment, keeping=keeping), Objective.THROUGHPUT).is_better_than(best)


def test_split_backward_passes_keep() -> None:
    for schedule in PipelineSchedule:
        if schedule in UNSPLIT_SCHEDULES:
            assert Training(schedule=schedule, activations=Activations.AS_NEEDED).schedule is schedule
        else:
            with pytest.raises(OptionsError, match="ask for gpipe, 1f1b, interleaved_1f1b, or keep them"):
                Training(schedule=schedule, activations=Activations.RECOMPUTED)
