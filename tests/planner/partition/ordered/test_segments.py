"""Segments against evaluate: the same definitions, computed two ways."""

import numpy as np
from hypothesis import given

from planner.partition.assignment import contiguous
from planner.partition.evaluate import evaluate
from planner.partition.objective import PipelineSchedule
from planner.partition.ordered.segments import Segments
from planner.partition.problem import PartitionProblem
from planner.partition.traffic import traffic
from planner.partition.training.memory import kept_microbatches
from tests.planner.partition.problems import INFERENCE, problems, trainings
from tests.random_examples import random_examples


@random_examples(50)
@given(problems(max_nodes=8, max_devices=3, training=INFERENCE | trainings))
def test_rows_equal_evaluate(problem: PartitionProblem) -> None:
    segments = Segments(problem)
    n = problem.num_nodes
    for start in range(n):
        row = segments.row(start, n)
        for end in range(start + 1, n + 1):
            boundaries = sorted({0, start, end, n})
            stage = boundaries.index(start)
            count = len(boundaries) - 1
            if count > problem.num_devices:
                continue
            assignment = contiguous(problem, boundaries, range(count), [""] * count)
            evaluation = evaluate(problem, assignment).stages[stage]
            at = end - start - 1
            assert row.state_bytes[at] == evaluation.state_bytes
            assert row.activation_bytes[at] + row.recomputed_bytes[at] == evaluation.activation_bytes
            assert row.buffer_bytes[at] == evaluation.buffer_bytes
            crossings = traffic(problem, np.array(assignment.stage_of_node), count).crossings
            arriving = crossings.values[crossings.targets == stage]
            departing = np.unique(crossings.values[crossings.sources == stage])
            assert row.received_bytes[at] == problem.value_bytes[arriving].sum()
            assert row.sent_bytes[at] == problem.value_bytes[departing].sum()
            assert row.receives[at] == (arriving.size > 0)
            assert row.sends[at] == (departing.size > 0)
            if problem.training is None:
                continue
            assert row.trained_bytes[at] == evaluation.gradient_bytes + evaluation.optimizer_bytes
            kept_bytes = kept_microbatches(problem.training, count, stage) * row.saved_bytes[at]
            if problem.training.schedule is PipelineSchedule.BEST:
                # What it makes do with: where there is memory for more, it keeps more.
                assert kept_bytes <= evaluation.saved_bytes
            else:
                assert kept_bytes == evaluation.saved_bytes
                assert row.peak_bytes[at] >= evaluation.peak_bytes
            assert row.gradients_returned_bytes[at] == problem.value_gradient_bytes[arriving].sum()
            assert row.gradients_awaited_bytes[at] == problem.value_gradient_bytes[departing].sum()
