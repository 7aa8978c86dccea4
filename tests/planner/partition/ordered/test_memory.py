"""Memory that cannot matter, and memory in tiers: neither may change what fits."""

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.partition.evaluate import evaluate
from planner.partition.ordered.binding_memory import without_idle_memory
from planner.partition.ordered.device_classes import device_classes
from planner.partition.ordered.largest_segment import largest_segment_bytes
from planner.partition.ordered.memory_tiers import in_memory_tiers
from planner.partition.ordered.positions import furthest_end
from planner.partition.ordered.segments import Segments
from planner.partition.ordered.state_space import num_counted_states
from planner.partition.problem import PartitionProblem
from tests.planner.partition.exact import all_contiguous
from tests.planner.partition.problems import chain, problems, trainings
from tests.random_examples import random_examples


@pytest.mark.slow
@random_examples(80)
@given(problem=problems(max_nodes=6, max_devices=3), limit=st.sampled_from([2.0, 5.0, 10.0, np.inf]))
def test_what_fits_below_the_limit_is_the_same(problem: PartitionProblem, limit: float) -> None:
    capped = without_idle_memory(problem, limit).device_memory_bytes
    for assignment in all_contiguous(problem):
        evaluation = evaluate(problem, assignment)
        if evaluation.bottleneck_seconds <= limit:
            needed = np.array(evaluation.device_peak_bytes)
            assert (needed <= capped).all() == (needed <= problem.device_memory_bytes).all()


def test_a_limit_on_seconds_bounds_the_bytes() -> None:
    states = [(100, (node,)) for node in range(8)]
    problem = chain([[1.0] * 8] * 3, states=states, memory_bytes=[900, 500, 250], value_bytes=[0] * 9)
    assert without_idle_memory(problem).device_memory_bytes.tolist() == [800, 500, 250]
    assert without_idle_memory(problem, 4.0).device_memory_bytes.tolist() == [400, 400, 250]


def at_most(max_states: int) -> Callable[[PartitionProblem], bool]:
    return lambda problem: num_counted_states(device_classes(problem)) <= max_states


@pytest.mark.parametrize("round_up", [False, True])
def test_tiers_round_one_way_within_the_states_allowed(round_up: bool) -> None:
    problem = chain([[1.0] * 4] * 5 + [[2.0] * 4] * 4, memory_bytes=[10, 50, 30, 20, 40, 7, 9, 8, 6])
    tiered = in_memory_tiers(problem, at_most(200), round_up=round_up)
    assert tiered is not None
    expected = [30, 50, 30, 30, 50, 7, 9, 9, 7] if round_up else [10, 40, 10, 10, 40, 6, 8, 8, 6]
    assert tiered.device_memory_bytes.tolist() == expected
    assert num_counted_states(device_classes(tiered)) <= 200


def test_no_tiers_where_devices_differ_in_all_else() -> None:
    problem = chain([[1.0 + device] * 4 for device in range(6)])
    assert in_memory_tiers(problem, at_most(63), round_up=True) is None
    assert in_memory_tiers(problem, at_most(64), round_up=True) is not None


@random_examples(80)
@given(problem=problems(max_nodes=7, max_devices=2, training=st.none() | trainings), limit=st.floats(0.5, 20.0))
def test_no_segment_within_the_limit_needs_more(problem: PartitionProblem, limit: float) -> None:
    segments, furthest = Segments(problem), furthest_end(problem, limit)
    most = largest_segment_bytes(problem, limit)
    for start in np.flatnonzero(problem.cut_allowed[:-1]).tolist():
        ends = np.arange(start + 1, furthest[start] + 1)
        if ends.size:
            assert segments.row(start, int(ends[-1])).peak_bytes.max() <= most


def test_a_state_used_at_both_ends_counts_only_where_it_is_used() -> None:
    states = [(1000, (0, 7)), (10, (2, 3)), (10, (4,))]
    problem = chain([[1.0] * 8] * 2, states=states, value_bytes=[0] * 9)
    assert largest_segment_bytes(problem, 3.0) == 1010
    assert largest_segment_bytes(problem, 8.0) == 1020


@random_examples(30)
@given(problem=problems(max_nodes=7, max_devices=3), limit=st.sampled_from([0.0, 1.0, 4.0, 8.0]))
def test_a_stage_reaches_as_far_as_the_quickest_device_gets(problem: PartitionProblem, limit: float) -> None:
    """To the last node within the limit."""
    furthest = furthest_end(problem, limit)
    for start in range(problem.num_nodes):
        ends = [
            end
            for end in range(start, problem.num_nodes + 1)
            if problem.compute_seconds[:, start:end].sum(axis=1).min() <= limit
        ]
        assert furthest[start] == max(ends)
