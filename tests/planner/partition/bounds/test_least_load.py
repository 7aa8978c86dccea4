"""What a bundle makes its device do at least: the least of all sets of bundles with it, and at times the optimum."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given

from planner.partition.bounds.least_load import least_load_bound
from planner.partition.modes.optimal import optimal
from planner.partition.objective import Objective
from planner.partition.problem import PartitionProblem
from planner.partition.program_orders import bundles_of
from planner.partition.request import Request
from planner.partition.score import score
from tests.planner.partition.problems import problem as problem_of
from tests.planner.partition.problems import problems, trainings
from tests.random_examples import random_examples


@random_examples(40)
@given(problem=problems(max_nodes=6, max_devices=2, equal_links=True))
def test_it_is_the_least_of_all_sets(problem: PartitionProblem) -> None:
    without = replace(problem, link_latency_seconds=np.zeros_like(problem.link_latency_seconds))
    expected = least_load(without)
    bound = least_load_bound(without, bundles_of(without), 0.0)
    assert bound == pytest.approx(expected if problem.num_devices > 1 else 0.0, rel=1e-6, abs=1e-9)
    with_latency = least_load_bound(problem, bundles_of(problem), 0.0)
    assert bound * (1 - 1e-9) <= with_latency <= least_load(problem) * (1 + 1e-9)


@random_examples(10)
@given(problem=problems(max_nodes=5, max_devices=2, equal_links=True, training=trainings))
def test_gradients_come_back(problem: PartitionProblem) -> None:
    without = replace(problem, link_latency_seconds=np.zeros_like(problem.link_latency_seconds))
    expected = least_load(without) if problem.num_devices > 1 else 0.0
    assert least_load_bound(without, bundles_of(without), 0.0) == pytest.approx(expected, rel=1e-6, abs=1e-9)


def least_load(problem: PartitionProblem) -> float:
    """By trying every set of bundles, over links that are equal."""
    count = bundles_of(problem).count
    return max(
        min(load(problem, {bundle, *others}) for others in subsets(set(range(count)) - {bundle}))
        for bundle in range(count)
    )


def subsets(items: set[int]) -> Iterator[tuple[int, ...]]:
    return (chosen for count in range(len(items) + 1) for chosen in combinations(sorted(items), count))


def load(problem: PartitionProblem, chosen: set[int]) -> float:
    bundle_of_node = bundles_of(problem).bundle_of_node.tolist()
    here = [bundle in chosen for bundle in bundle_of_node]
    seconds = float(problem.work_seconds.min(axis=0)[here].sum())
    per_byte, latency = problem.link_seconds_per_byte[0, -1], problem.link_latency_seconds[0, -1]
    received = sent = False
    for value in range(problem.num_values):
        maker = int(problem.value_producer[value])
        readers = [here[node] for node in problem.read_node[problem.read_value == value]]
        if maker >= 0 and readers and (any(readers) if not here[maker] else not all(readers)):
            size = problem.value_bytes[value] + (problem.value_gradient_bytes[value] if problem.training else 0)
            seconds += float(size * per_byte)
            received, sent = received or not here[maker], sent or here[maker]
    return seconds + latency * (received + sent)


def test_what_no_device_is_spared_is_proven_where_devices_are_plenty() -> None:
    """Node 2 reads and makes a large value each; with either neighbour its device would have more to do."""
    problem = problem_of(
        compute_seconds=[[4.0, 4.0, 3.0, 4.0, 4.0]] * 6,
        value_bytes=[0, 1, 20, 20, 1, 0],
        reads=[[0], [1], [2], [3], [4]],
        per_byte=0.1,
        latency=0.5,
    )
    assert least_load_bound(problem, bundles_of(problem), 0.0) == pytest.approx(3.0 + 2.0 + 2.0 + 2 * 0.5)
    plan = optimal(problem, Request(mode="optimal", objective=Objective.THROUGHPUT))
    assert plan.lower_bound_seconds == score(problem, plan, Objective.THROUGHPUT).value == pytest.approx(8.0)


def test_nobody_pays_latency_for_what_it_runs_itself() -> None:
    """Its reader and what it reads cost nothing: one device runs them all and is sent nothing."""
    problem = problem_of(
        compute_seconds=[[0.0, 3.0, 0.0]] * 2,
        value_bytes=[0, 1, 1, 0],
        reads=[[0], [1], [2]],
        per_byte=1.0,
        latency=7.0,
    )
    assert least_load_bound(problem, bundles_of(problem), 0.0) == pytest.approx(3.0)


def test_the_first_is_sent_nothing_and_the_last_sends_nothing() -> None:
    problem = problem_of(
        compute_seconds=[[20.0, 20.0]] * 2, value_bytes=[0, 1, 0], reads=[[0], [1]], per_byte=1.0, latency=7.0
    )
    assert least_load_bound(problem, bundles_of(problem), 0.0) == pytest.approx(20.0 + 1.0 + 7.0)


def test_it_keeps_what_is_proven() -> None:
    problem = problem_of(compute_seconds=[[1.0, 1.0]] * 2, value_bytes=[0, 30, 0], reads=[[0], [1]], per_byte=1.0)
    bundles = bundles_of(problem)
    assert least_load_bound(problem, bundles, 0.0) == pytest.approx(2.0)
    assert least_load_bound(problem, bundles, 2.5) == 2.5
