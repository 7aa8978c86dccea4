"""Mode "size_based": first fit in program order."""

import numpy as np
import pytest
from hypothesis import given

from planner.errors import Infeasible
from planner.partition.evaluate import evaluate
from planner.partition.modes.size_based import size_based
from planner.partition.problem import PartitionProblem
from tests.planner.partition.exact import all_contiguous
from tests.planner.partition.problems import chain, problems
from tests.random_examples import random_examples


def weights(sizes: list[int], memory_bytes: list[int]) -> PartitionProblem:
    states = [(size, (node,)) for node, size in enumerate(sizes)]
    seconds = [[1.0] * len(sizes)] * len(memory_bytes)
    return chain(seconds, states=states, memory_bytes=memory_bytes, value_bytes=[0] * (len(sizes) + 1))


def test_whole_program_goes_to_the_first_of_the_largest_devices() -> None:
    assignment = size_based(weights([10, 10, 10], [20, 40, 40]))
    assert (assignment.num_stages, assignment.device_of_stage) == (1, (1,))


def test_devices_are_filled_in_list_order() -> None:
    assignment = size_based(weights([10, 10, 10, 10], [20, 15, 10]))
    assert assignment.stage_of_node == (0, 0, 1, 2)
    assert assignment.device_of_stage == (0, 1, 2)


def test_a_device_too_small_for_the_next_node_is_passed_over() -> None:
    assignment = size_based(weights([30, 5], [10, 30]))
    assert assignment.device_of_stage == (1, 0)


def test_exact_fill_is_allowed() -> None:
    assignment = size_based(weights([10, 20, 10], [30, 10]))
    assert assignment.stage_of_node == (0, 0, 1)


def test_where_first_fit_runs_out_some_other_cut_is_found() -> None:
    problem = weights([10, 30], [35, 12])
    assignment = size_based(problem)
    assert assignment.device_of_stage == (1, 0)
    assert "first fit runs out" in assignment.reasons[0]


def test_groups_stay_whole() -> None:
    problem = chain(
        [[1.0] * 3] * 2,
        states=[(10, (0,)), (10, (1,)), (10, (2,))],
        memory_bytes=[25, 25],
        value_bytes=[0] * 4,
        groups=[(1, 2)],
    )
    assert size_based(problem).stage_of_node == (0, 1, 1)


@pytest.mark.slow
@random_examples(50)
@given(problem=problems(max_nodes=6, max_devices=3))
def test_plans_whatever_fits_and_never_overfills(problem: PartitionProblem) -> None:
    def fits(peaks: tuple[int, ...]) -> bool:
        return bool((np.array(peaks) <= problem.device_memory_bytes).all())

    possible = any(fits(evaluate(problem, one).device_peak_bytes) for one in all_contiguous(problem))
    if not possible:
        with pytest.raises(Infeasible):
            size_based(problem)
    else:
        assert fits(evaluate(problem, size_based(problem)).device_peak_bytes)
