"""Each cut's next best place, against trying every place."""

from __future__ import annotations

import numpy as np
from hypothesis import given

from planner.partition.assignment import contiguous
from planner.partition.evaluate import evaluate
from planner.partition.next_best import next_best_cuts
from planner.partition.ordered.positions import allowed_positions
from planner.partition.problem import PartitionProblem
from tests.planner.partition.problems import problems
from tests.random_examples import random_examples


@random_examples(40)
@given(problems())
def test_no_other_place_for_a_cut_is_better(problem: PartitionProblem) -> None:
    positions = allowed_positions(problem)
    if problem.num_devices < 2 or positions.size < 3:
        return
    boundaries = (0, int(positions[1]), problem.num_nodes)
    assignment = contiguous(problem, boundaries, (0, 1), ("", ""))
    values = {}
    for position in positions[1:-1].tolist():
        other = evaluate(problem, contiguous(problem, (0, position, problem.num_nodes), (0, 1), ("", "")))
        if position != boundaries[1] and (np.array(other.device_peak_bytes) <= problem.device_memory_bytes).all():
            values[position] = other.bottleneck_seconds
    (cut,) = next_best_cuts(problem, assignment, lambda evaluation: evaluation.bottleneck_seconds)
    if positions.size <= 8:
        assert cut.value == min(values.values(), default=np.inf)
    assert cut.position is None or values[cut.position] == cut.value
