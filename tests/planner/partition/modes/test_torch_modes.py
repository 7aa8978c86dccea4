"""What holds of single, sparse_nn, cost_aware, kl_based and of copies on idle devices, whatever the problem."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.errors import Infeasible
from planner.partition.assignment import Assignment
from planner.partition.evaluate import evaluate
from planner.partition.problem import PartitionProblem
from planner.partition.registry import partition
from planner.partition.request import Request
from tests.planner.partition.exact import all_contiguous, fits
from tests.planner.partition.problems import problems
from tests.random_examples import random_examples

MODES = ("single", "sparse_nn", "cost_aware", "kl_based")


def check_valid(problem: PartitionProblem, assignment: Assignment) -> None:
    stages = np.array(assignment.stage_of_node)
    assert set(stages.tolist()) == set(range(assignment.num_stages))
    assert len(assignment.reasons) == assignment.num_stages
    made_by = problem.value_producer[problem.read_value]
    inside = made_by >= 0
    assert (stages[made_by[inside]] <= stages[problem.read_node[inside]]).all()
    for group in set(problem.node_group.tolist()) - {-1}:
        assert np.unique(stages[problem.node_group == group]).size == 1
    for devices in assignment.devices_of_stage:
        assert len(set(devices)) == len(devices)
    assert fits(problem, assignment)


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
@random_examples(8)
@given(problem=problems(max_nodes=7, max_devices=3), data=st.data())
def test_assignments_are_valid(mode: str, problem: PartitionProblem, data: st.DataObject) -> None:
    tables = data.draw(st.lists(st.booleans(), min_size=problem.num_nodes, max_size=problem.num_nodes))
    problem = replace(problem, is_embedding=np.array(tables, dtype=np.bool_))
    try:
        assignment = partition(problem, Request(mode=mode))
    except Infeasible:
        if mode in ("cost_aware", "kl_based"):
            assert not any(fits(problem, one) for one in all_contiguous(problem))
        return
    check_valid(problem, assignment)
    assert partition(problem, Request(mode=mode)) == assignment


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
@random_examples(6)
@given(problem=problems(max_nodes=5, max_devices=4))
def test_copies_hold_what_they_copy(mode: str, problem: PartitionProblem) -> None:
    try:
        assignment = partition(problem, Request(mode=mode, saturate_host=True))
    except Infeasible:
        return
    check_valid(problem, assignment)
    alone = partition(problem, Request(mode=mode))
    assert (assignment.device_of_stage, assignment.stage_of_node) == (alone.device_of_stage, alone.stage_of_node)
    # Every stage of a device has as many copies.
    for device in set(alone.device_of_stage):
        here = [stage for stage, first in enumerate(alone.device_of_stage) if first == device]
        counts = [len(assignment.devices_of_stage[stage]) // len(alone.devices_of_stage[stage]) for stage in here]
        assert len(set(counts)) == 1


@pytest.mark.parametrize("mode", ["cost_aware", "kl_based"])
@random_examples(12)
@given(problem=problems(max_nodes=6, max_devices=3))
def test_a_lone_batch_is_no_slower_than_on_size_based_stages(mode: str, problem: PartitionProblem) -> None:
    try:
        first_fit = partition(problem, Request(mode="size_based"))
    except Infeasible:
        return
    latency_seconds = evaluate(problem, partition(problem, Request(mode=mode))).latency_seconds
    assert latency_seconds <= evaluate(problem, first_fit).latency_seconds * (1 + 1e-9)
