"""What a bundle makes its device hold at least: the least of all sets of bundles with it, and at times the optimum."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given

from benchmarks.nets_on_clusters import problem_of as net_on
from planner.partition.assignment import contiguous
from planner.partition.bounds.least_memory import least_memory_bound
from planner.partition.bounds.work import held_bytes, memory_bound
from planner.partition.evaluate import evaluate
from planner.partition.modes.optimal import optimal
from planner.partition.objective import Objective
from planner.partition.problem import PartitionProblem
from planner.partition.program_orders import bundles_of
from planner.partition.request import Request
from planner.partition.score import score
from tests.planner.partition.bounds.test_least_load import subsets
from tests.planner.partition.problems import problem as problem_of
from tests.planner.partition.problems import problems, trainings
from tests.random_examples import random_examples


@random_examples(40)
@given(problem=problems(max_nodes=6, max_devices=2))
def test_it_is_the_least_of_all_sets(problem: PartitionProblem) -> None:
    expected = least_memory(problem)
    assert least_memory_bound(problem, bundles_of(problem), 0.0) == pytest.approx(expected, rel=1e-6, abs=1e-12)


@random_examples(10)
@given(problem=problems(max_nodes=5, max_devices=2, training=trainings))
def test_states_are_held_with_all_that_training_adds(problem: PartitionProblem) -> None:
    expected = least_memory(problem)
    assert least_memory_bound(problem, bundles_of(problem), 0.0) == pytest.approx(expected, rel=1e-6, abs=1e-12)


def least_memory(problem: PartitionProblem) -> float:
    """By trying every set of bundles."""
    count, held = bundles_of(problem).count, held_bytes(problem)
    bundle_of_node = bundles_of(problem).bundle_of_node
    return max(
        min(
            float(held[bundle_of_node == bundle].max()) + around(problem, {bundle, *others})
            for others in subsets(set(range(count)) - {bundle})
        )
        for bundle in range(count)
    ) / float(problem.device_memory_bytes.max())


def around(problem: PartitionProblem, chosen: set[int]) -> float:
    """Bytes of states, a part of those that others use too, and of buffers."""
    here = [bundle in chosen for bundle in bundles_of(problem).bundle_of_node.tolist()]
    users: dict[int, list[int]] = {}
    for state, node in zip(problem.use_state.tolist(), problem.use_node.tolist(), strict=True):
        users.setdefault(state, []).append(node)
    total = sum(
        float(problem.whole_state_bytes[state]) * sum(here[node] for node in nodes) / len(nodes)
        for state, nodes in users.items()
    )
    for value, maker in enumerate(problem.value_producer.tolist()):
        readers = problem.read_node[problem.read_value == value].tolist()
        is_apart = any(here[reader] != here[maker] for reader in readers)
        if maker >= 0 and is_apart and not problem.value_returned[value]:
            total += problem.microbatches_in_flight * int(problem.value_bytes[value])
    return total


def test_a_large_value_and_what_is_needed_for_it_is_the_optimum() -> None:
    """States at both ends are too large to share a device."""
    problem = problem_of(
        compute_seconds=[[1.0] * 3] * 3,
        num_inputs=0,
        reads=[[], [0], [1]],
        value_bytes=[60, 60, 0],
        states=[(500, (0,)), (1, (1,)), (500, (2,))],
        memory_bytes=[1000] * 3,
    )
    bound = least_memory_bound(problem, bundles_of(problem), 0.0)
    plan = optimal(problem, Request(mode="optimal", objective=Objective.MEMORY))
    assert score(problem, plan, Objective.MEMORY).value == pytest.approx(bound)
    # An end of the program holds its state, what it makes and reads, and its buffers.
    assert bound == pytest.approx((500 + 60 + 2 * 60) / 1000)
    assert memory_bound(problem) < bound


def test_of_a_view_that_is_made_elsewhere_a_stage_has_what_it_shows() -> None:
    problem = problem_of(
        compute_seconds=[[1.0] * 3] * 2,
        num_inputs=0,
        reads=[[], [0], [1]],
        value_bytes=[100, 4, 7],
        views={1: 0},
        memory_bytes=[1000] * 2,
    )
    assert held_bytes(problem).tolist() == [100, 100, 4 + 7]
    apart = evaluate(problem, contiguous(problem, (0, 2, 3), (0, 1)))
    assert apart.stages[1].activation_bytes == 4 + 7


def test_a_u_net_is_nearly_proven() -> None:
    problem = net_on("unet", 16, "wholes", 1.3)
    before = memory_bound(problem)
    bound = least_memory_bound(problem, bundles_of(problem), before)
    assert bound > 1.15 * before
    assert least_memory_bound(problem, bundles_of(problem), 2 * bound) == 2 * bound


def test_a_device_without_memory_proves_nothing() -> None:
    problem = problem_of(compute_seconds=[[1.0]], num_inputs=0, reads=[[]], value_bytes=[1], memory_bytes=[0])
    assert least_memory_bound(problem, bundles_of(problem), 0.25) == 0.25
    assert np.isfinite(memory_bound(problem))
