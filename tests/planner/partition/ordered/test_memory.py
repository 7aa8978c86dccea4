"""Memory that cannot matter, and memory in tiers: neither may change what fits."""

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.partition.assignment import contiguous
from planner.partition.evaluate import evaluate
from planner.partition.objective import PipelineSchedule, Training
from planner.partition.ordered.hosts import hosts_of
from planner.partition.ordered.memory_tiers import (
    in_memory_tiers,
    memory_is_idle,
    most_bytes_within,
    without_idle_memory,
)
from planner.partition.ordered.positions import furthest_end
from planner.partition.problem import PartitionProblem
from tests.planner.partition.exact import all_contiguous
from tests.planner.partition.problems import chain, problems, trainings
from tests.random_examples import random_examples


@pytest.mark.slow
@random_examples(80)
@given(problem=problems(max_nodes=6, max_devices=3))
def test_what_fits_is_the_same(problem: PartitionProblem) -> None:
    capped = without_idle_memory(problem).device_memory_bytes
    for assignment in all_contiguous(problem):
        needed = np.array(evaluate(problem, assignment).device_peak_bytes)
        assert (needed <= capped).all() == (needed <= problem.device_memory_bytes).all()


@pytest.mark.slow
@random_examples(120)
@given(problem=problems(max_nodes=6, max_devices=3, training=st.none() | trainings, barred=True))
def test_no_plan_of_stages_that_are_as_quick_needs_more(problem: PartitionProblem) -> None:
    """However slow the devices are that it has chosen."""
    quickest = problem.work_seconds.min(axis=0)
    for assignment in all_contiguous(problem):
        stages = np.array(assignment.stage_of_node)
        seconds = float(np.bincount(stages, quickest).max())
        needed = max(stage.peak_bytes for stage in evaluate(problem, assignment).stages)
        assert needed <= most_bytes_within(problem, seconds)


def test_what_is_beyond_the_needs_of_plans_as_quick_tells_no_devices_apart() -> None:
    states = [(100, (node,)) for node in range(8)]
    problem = chain([[1.0] * 8] * 3, states=states, memory_bytes=[900, 500, 250], value_bytes=[10] * 9)
    # Three nodes, a value that enters, live and twice in flight, one that leaves, and two made.
    assert most_bytes_within(problem, 3.0) == 300 + 3 * 10 + (1 + 2) * 10 + 2 * 10
    assert without_idle_memory(problem, 3.0).device_memory_bytes.tolist() == [380, 380, 250]
    assert without_idle_memory(problem, 2.9).device_memory_bytes.tolist() == [270, 270, 250]


def test_what_is_saved_for_the_backward_pass_is_needed_for_every_microbatch() -> None:
    training = Training(schedule=PipelineSchedule.GPIPE, microbatches=5)
    problem = chain([[1.0] * 4] * 2, value_bytes=[0, 10, 10, 10, 0], training=training)
    whole = contiguous(problem, (0, 4), (0,))
    assert 5 * 30 <= evaluate(problem, whole).stages[0].peak_bytes <= most_bytes_within(problem, 4.0)


def test_what_the_whole_program_needs_is_enough_for_any_device() -> None:
    states = [(100, (node,)) for node in range(8)]
    problem = chain([[1.0] * 8] * 3, states=states, memory_bytes=[900, 500, 250], value_bytes=[0] * 9)
    assert without_idle_memory(problem).device_memory_bytes.tolist() == [800, 500, 250]


def test_memory_is_idle_where_every_device_holds_what_such_plans_need() -> None:
    states = [(100, (node,)) for node in range(8)]
    problem = chain([[1.0] * 8] * 3, states=states, memory_bytes=[900, 500, 250], value_bytes=[0] * 9)
    assert not memory_is_idle(problem)
    # Of three nodes 300 bytes, of two 200.
    assert not memory_is_idle(problem, 3.0)
    assert memory_is_idle(problem, 2.9)


def at_most(max_states: int) -> Callable[[PartitionProblem], bool]:
    return lambda problem: hosts_of(problem).num_states <= max_states


@pytest.mark.parametrize("round_up", [False, True])
def test_tiers_round_one_way_within_the_states_allowed(round_up: bool) -> None:
    problem = chain([[1.0] * 4] * 5 + [[2.0] * 4] * 4, memory_bytes=[10, 50, 30, 20, 40, 7, 9, 8, 6])
    tiered = in_memory_tiers(problem, at_most(200), round_up=round_up)
    assert tiered is not None
    expected = [30, 50, 30, 30, 50, 7, 9, 9, 7] if round_up else [10, 40, 10, 10, 40, 6, 8, 8, 6]
    assert tiered.device_memory_bytes.tolist() == expected
    assert hosts_of(tiered).num_states <= 200


def test_no_tiers_where_devices_differ_in_all_else() -> None:
    problem = chain([[1.0 + device] * 4 for device in range(6)])
    assert in_memory_tiers(problem, at_most(63), round_up=True) is None
    assert in_memory_tiers(problem, at_most(64), round_up=True) is not None


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
