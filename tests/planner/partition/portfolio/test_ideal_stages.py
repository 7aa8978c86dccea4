"""Stages between order ideals, beside what `evaluate` says of each."""

from __future__ import annotations

import numpy as np
from hypothesis import given

from planner.partition.evaluate import evaluate
from planner.partition.portfolio.ideal_stages import IdealStages, all_ideals
from planner.partition.problem import PartitionProblem
from planner.partition.program_orders import bundles_of
from tests.planner.partition.problems import problem as problem_of
from tests.planner.partition.problems import problems
from tests.random_examples import random_examples


@random_examples(40)
@given(problem=problems(max_nodes=5, max_devices=1))
def test_they_hold_what_an_evaluation_counts(problem: PartitionProblem) -> None:
    check_bytes(problem)


def test_the_last_stage_is_sent_what_it_only_returns() -> None:
    check_bytes(
        problem_of(
            compute_seconds=[[1.0] * 3], reads=[[0], [0], [2]], value_bytes=[1, 40, 2, 3], returned=(1, 3), relay=False
        )
    )


def check_bytes(problem: PartitionProblem) -> None:
    bundles = bundles_of(problem)
    ideals = all_ideals(bundles, 1000)
    assert ideals is not None
    stages = IdealStages(problem, bundles, ideals)
    starts, ends = stages.within(np.inf)
    counted = stages.peak_bytes(starts, ends)
    for start, end, num_bytes in zip(starts.tolist(), ends.tolist(), counted.tolist(), strict=True):
        before, through = ideals.members[start], ideals.members[end]
        # What runs before it is a stage, if anything does, and so is what runs behind it.
        stage_of_bundle = np.where(before, 0, np.where(through, 1, 2)) - (not before.any())
        count = int(stage_of_bundle.max()) + 1
        assignment = bundles.assignment(stage_of_bundle, (0,) * count)
        assert num_bytes == evaluate(problem, assignment).stages[int(before.any())].peak_bytes
