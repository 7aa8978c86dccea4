"""Contiguous placements against every assignment, on small problems, and against known optima of profiled graphs."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from planner.cost_graphs.cost_graph import read_cost_graph
from planner.cost_graphs.placement.contiguous import best_contiguous
from planner.cost_graphs.placement.costs import device_loads
from planner.cost_graphs.placement.ideals.contraction import item_costs, items_of
from planner.cost_graphs.placement.ideals.least_bottleneck import least_load
from planner.cost_graphs.placement.problem import PlacementProblem
from planner.errors import Infeasible
from planner.partition.lattice import enumerate_ideals, order_of
from tests.nightly import nightly
from tests.planner.cost_graphs.placement.small_placements import is_feasible, least_bottleneck, random_placement
from tests.random_examples import random_seeds

INSTANCES = Path(__file__).parents[4] / "benchmarks" / "instances" / "throughput"
OPTIMA = {
    "LayerGraphs_bert24_inference": 17.789906,
    "LayerGraphs_bert24_training": 41.745812,
    "LayerGraphs_gnmt_inference": 32.910658,
    "LayerGraphs_resnet50_inference": 33.774666,
    "OperatorGraphs_bert_l-3_inference": 27.918568,
    "OperatorGraphs_bert_l-3_training": 65.303093,
}


@pytest.mark.slow
@pytest.mark.parametrize("first", [0, 50, *nightly(range(100, 400, 50))])
def test_small_problems_get_the_value_that_trying_everything_gives(first: int) -> None:
    for seed in range(first, first + 50):
        problem = random_placement(seed)
        expected = least_bottleneck(problem)
        if np.isinf(expected):
            with pytest.raises(Infeasible):
                best_contiguous(problem)
            continue
        placement = best_contiguous(problem)
        assert is_feasible(problem, placement.device_of_node), seed
        assert placement.value_seconds == pytest.approx(
            device_loads(problem, placement.device_of_node).max(), abs=1e-12
        )
        assert placement.value_seconds == pytest.approx(expected, abs=1e-9), seed
        assert placement.lower_bound_seconds == pytest.approx(expected, abs=1e-9), seed


@pytest.mark.fuzz
def test_the_first_bound_is_below_every_placement_and_at_some() -> None:
    """What a search starts from, before any ideal is looked at."""
    tight = 0
    for seed in random_seeds(50):
        problem = random_placement(seed)
        items = items_of(problem)
        best = least_bottleneck(problem)
        if np.isinf(best):
            continue
        bound = least_load(item_costs(problem, items.item_of_node), tuple(problem.class_devices.tolist()))
        assert bound <= best * (1 + 1e-12), seed
        tight += bound >= best * (1 - 1e-8)
    assert tight >= 5


@pytest.mark.parametrize("name", OPTIMA)
def test_profiled_graphs_reach_their_proven_optimum(name: str) -> None:
    problem = _instance(name)
    placement = best_contiguous(problem)
    assert is_feasible(problem, placement.device_of_node)
    assert placement.value_seconds == pytest.approx(OPTIMA[name], abs=1e-6)
    assert placement.lower_bound_seconds == pytest.approx(placement.value_seconds, rel=1e-9)


def test_the_same_problem_gets_the_same_placement() -> None:
    problem = _instance("LayerGraphs_gnmt_inference")
    assert best_contiguous(problem).device_of_node == best_contiguous(replace(problem)).device_of_node


@pytest.mark.parametrize(("seed", "max_pairs"), [(5, 150), (36, 20), (66, 1000), (96, 400)])
def test_a_budget_that_ends_within_a_round_ends_the_search(seed: int, max_pairs: int) -> None:
    problem = random_placement(seed)
    placement = best_contiguous(problem, max_pairs=max_pairs)
    assert is_feasible(problem, placement.device_of_node)
    assert placement.lower_bound_seconds <= least_bottleneck(problem) * (1 + 1e-9)


@pytest.mark.parametrize("max_pairs", [0, 1000, *nightly([1, 100_000])])
def test_a_search_cut_short_still_places_and_never_claims_too_much(max_pairs: int) -> None:
    for name in ("OperatorGraphs_bert_l-3_training", "LayerGraphs_resnet50_inference"):
        problem = _instance(name)
        placement = best_contiguous(problem, max_pairs=max_pairs)
        assert is_feasible(problem, placement.device_of_node)
        assert placement.lower_bound_seconds <= OPTIMA[name] + 1e-6
        assert placement.value_seconds >= OPTIMA[name] - 1e-6


def test_a_search_out_of_time_still_places() -> None:
    problem = _instance("OperatorGraphs_bert_l-3_inference")
    placement = best_contiguous(problem, out_of_time=lambda: True)
    assert is_feasible(problem, placement.device_of_node)
    assert placement.lower_bound_seconds <= OPTIMA["OperatorGraphs_bert_l-3_inference"] + 1e-6


def _ideals(problem: PlacementProblem, limit: int) -> dict[int, int] | None:
    items = items_of(problem)
    return enumerate_ideals(order_of(items.num_ordered, items.arc_source, items.arc_target), limit)


@pytest.mark.slow
def test_independent_chains_have_more_ideals_than_can_be_searched_and_get_a_gap() -> None:
    problem = _parallel_chains(num_chains=24, length=6)
    assert _ideals(problem, 100_000) is None
    placement = best_contiguous(problem)
    assert is_feasible(problem, placement.device_of_node)
    assert placement.lower_bound_seconds <= placement.value_seconds


@pytest.mark.slow
def test_a_long_chain_is_placed_in_blocks() -> None:
    problem = _parallel_chains(num_chains=1, length=3000)
    placement = best_contiguous(problem, max_pairs=10_000_000)
    assert is_feasible(problem, placement.device_of_node)
    assert placement.gap < 0.05


def test_ideals_of_a_chain_are_its_prefixes() -> None:
    problem = _parallel_chains(num_chains=1, length=40)
    assert list(_ideals(problem, 41) or ()) == [(1 << length) - 1 for length in range(41)]
    assert _ideals(problem, 40) is None


def test_memory_that_binds_is_named_with_numbers() -> None:
    problem = _parallel_chains(num_chains=1, length=4)
    small = replace(problem, node_bytes=np.full(4, 3.0), class_bytes=np.array([5.0]))
    with pytest.raises(Infeasible, match=r"no contiguous placement exists .* 12 bytes"):
        best_contiguous(small)


def test_an_unsupported_node_is_named() -> None:
    problem = _parallel_chains(num_chains=1, length=4)
    seconds = problem.seconds.copy()
    seconds[0, 2] = np.inf
    with pytest.raises(Infeasible, match="'node 2'"):
        best_contiguous(replace(problem, seconds=seconds))


def _instance(name: str) -> PlacementProblem:
    return read_cost_graph(json.loads((INSTANCES / f"{name}.json").read_text())).problem


def _parallel_chains(*, num_chains: int, length: int) -> PlacementProblem:
    """Three devices; every node takes a second, every tensor a tenth."""
    num_nodes = num_chains * length
    producers = np.array([node for node in range(num_nodes) if node % length < length - 1], dtype=np.int64)
    return PlacementProblem(
        seconds=np.ones((1, num_nodes)),
        node_bytes=np.zeros(num_nodes),
        tensor_producer=producers,
        read_tensor=np.arange(producers.size),
        read_node=producers + 1,
        transfer_seconds=np.full((1, producers.size), 0.1),
        is_backward=np.zeros(num_nodes, dtype=np.bool_),
        colocation=np.arange(num_nodes),
        class_devices=np.array([3]),
        class_bytes=np.array([np.inf]),
        class_is_parallel=np.array([False]),
        node_names=tuple(f"node {index}" for index in range(num_nodes)),
        class_names=("accelerator",),
    )
