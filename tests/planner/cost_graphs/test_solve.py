"""Every road of `solve`: steps end a search with one answer; the clock ends it earlier, and the answer says so."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from planner.cost_graphs.limits import Limits
from planner.cost_graphs.solve import Answer, solve_cost_graph, solve_instance, solve_training_profile
from planner.partition.objective import Objective
from tests.builders.plans import inventory_of
from tests.builders.random_graphs import random_graph

INSTANCES = Path(__file__).parents[3] / "benchmarks" / "instances"
MANY_IDEALS = "throughput/OperatorGraphs_bert_l-3_training"
THROUGHPUT, LATENCY = Objective.THROUGHPUT, Objective.LATENCY


def document(name: str) -> Any:
    return json.loads((INSTANCES / f"{name}.json").read_text())


def own_format(limits: Limits) -> Answer:
    graph = random_graph(3, 40)
    names = [f"n{index}" for index in range(len(graph.nodes))]
    return solve_instance(graph, inventory_of(4), names, THROUGHPUT, limits, contiguous=True)


def contiguous(limits: Limits) -> Answer:
    return solve_cost_graph(document(MANY_IDEALS), THROUGHPUT, limits, contiguous=True)


def free(limits: Limits) -> Answer:
    return solve_cost_graph(document("throughput/LayerGraphs_gnmt_inference"), THROUGHPUT, limits, contiguous=False)


def latency(limits: Limits) -> Answer:
    return solve_cost_graph(document("latency/LayerGraphs_gnmt_inference"), LATENCY, limits, contiguous=False)


def training_profile(limits: Limits) -> Answer:
    return solve_training_profile(document("training/bert32a100"), limits, num_devices=64, memory_bytes=8.0 * (1 << 30))


ROADS = [own_format, contiguous, latency, training_profile, pytest.param(free, marks=pytest.mark.services)]


@pytest.mark.parametrize("road", ROADS)
def test_the_clock_ends_every_search_and_the_answer_says_so(road: Callable[[Limits], Answer]) -> None:
    answer = road(Limits(seconds=0.0))
    assert answer.is_cut
    assert not answer.is_proven
    assert 0 <= answer.lower_bound < answer.value
    assert answer.document


@pytest.mark.parametrize(("road", "effort"), [(own_format, 0.01), (contiguous, 1e-5)])
def test_steps_end_a_search_with_the_same_answer_every_time(road: Callable[[Limits], Answer], effort: float) -> None:
    """Free placements are in `test_worker`, where either of the two searches is made the slower one."""
    answer = road(Limits(effort=effort))
    assert answer == road(Limits(effort=effort))
    # The steps were really spent.
    assert not answer.is_proven
    assert not answer.is_cut


def test_a_training_profile_is_proven_without_a_clock() -> None:
    answer = training_profile(Limits())
    assert answer == training_profile(Limits(effort=2.0))
    assert answer.is_proven
    assert not answer.is_cut


def test_a_proof_in_time_is_not_cut() -> None:
    limits = Limits(seconds=3600.0)
    graph = random_graph(3, 4)
    answer = solve_instance(graph, inventory_of(1), list("abcd"), LATENCY, limits, contiguous=True)
    assert answer.is_proven
    assert not answer.is_cut
