"""The search against every pipeline of small problems, and its bound where it may not look at everything."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest

from planner.cost_graphs.hybrid import limit_search
from planner.cost_graphs.hybrid.alternatives import FITS, choose
from planner.cost_graphs.hybrid.limit_search import best_hybrid
from planner.cost_graphs.hybrid.problem import HybridPlan, HybridProblem, idle_sources, stage_costs
from planner.errors import Infeasible
from planner.partition.problem import Floats
from tests.planner.cost_graphs.hybrid.small_problems import least_seconds, random_problem
from tests.random_examples import random_seeds


def assert_holds(problem: HybridProblem, plan: HybridPlan) -> None:
    costs = stage_costs(problem, plan.stages)
    assert max(cost.seconds for cost in costs) == pytest.approx(plan.seconds_per_sample)
    assert all(cost.held_bytes <= problem.memory_bytes for cost in costs)
    assert sum(stage.copies * int(problem.degrees[stage.degree]) for stage in plan.stages) <= problem.num_devices
    assert sum(stage.copies for stage in plan.stages) <= problem.microbatches
    placed = {node: index for index, stage in enumerate(plan.stages) for node, _ in stage.alternatives}
    assert sorted(placed) == list(range(problem.num_nodes))
    for source, target in zip(problem.edge_source.tolist(), problem.edge_target.tolist(), strict=True):
        assert placed[source] <= placed[target]


@pytest.mark.fuzz
@pytest.mark.parametrize("seed", random_seeds(60))
def test_equals_the_best_of_all_pipelines(seed: int) -> None:
    problem = random_problem(seed)
    least = least_seconds(problem)
    if least == np.inf:
        with pytest.raises(Infeasible, match="no pipeline fits"):
            best_hybrid(problem)
        return
    plan = best_hybrid(problem)
    assert_holds(problem, plan)
    assert plan.seconds_per_sample == pytest.approx(least, rel=1e-8)
    assert plan.lower_bound_seconds <= least * (1 + 1e-12)
    assert plan.lower_bound_seconds == pytest.approx(least, rel=1e-8)


def _with_two_inputs(problem: HybridProblem) -> HybridProblem:
    """The first two nodes cost nothing, and what reads them gets no bytes."""
    from_inputs = problem.edge_source <= 1

    def free(table: Floats) -> Floats:
        return np.concatenate([np.zeros_like(table[:, :2]), table[:, 2:]], axis=1)

    return replace(
        problem,
        seconds=free(problem.seconds),
        parameter_bytes=free(problem.parameter_bytes),
        held_per_microbatch=free(problem.held_per_microbatch),
        held_always=free(problem.held_always),
        edge_bytes=np.where(from_inputs, 0.0, problem.edge_bytes),
        entering_bytes=np.where(from_inputs[None, :, None], 0.0, problem.entering_bytes),
        leaving_bytes=np.where(from_inputs[None, :, None], 0.0, problem.leaving_bytes),
        memory_bytes=1e9,
    )


@pytest.mark.fuzz
@pytest.mark.parametrize("seed", random_seeds(12))
def test_idle_sources_change_nothing_and_stand_with_their_first_reader(seed: int) -> None:
    problem = _with_two_inputs(random_problem(seed))
    assert idle_sources(problem)[:2].all()
    plan = best_hybrid(problem)
    assert_holds(problem, plan)
    assert plan.seconds_per_sample == pytest.approx(least_seconds(problem), rel=1e-8)


def test_a_program_that_costs_nothing_keeps_a_node_that_nothing_reads() -> None:
    problem = replace(
        _with_two_inputs(random_problem(0, nodes=2)),
        edge_source=np.array([1], dtype=np.int64),
        edge_target=np.array([0], dtype=np.int64),
        edge_bytes=np.zeros(1),
        entering_bytes=np.zeros((2, 1, 2)),
        leaving_bytes=np.zeros((2, 1, 2)),
    )
    assert idle_sources(problem).tolist() == [False, True]
    plan = best_hybrid(problem)
    assert_holds(problem, plan)
    assert plan.seconds_per_sample == 0


def test_an_input_with_bytes_to_send_is_no_idle_source() -> None:
    problem = _with_two_inputs(random_problem(0))
    sends = replace(problem, edge_bytes=np.where(problem.edge_source == 0, 1.0, 0.0))
    assert idle_sources(problem)[0]
    assert not idle_sources(sends)[0]


@pytest.mark.fuzz
@pytest.mark.parametrize("seed", random_seeds(20))
def test_a_bound_of_less_than_everything_is_still_one(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    problem = replace(random_problem(seed), memory_bytes=1e9)
    monkeypatch.setattr(limit_search, "MAX_IDEALS", 2)
    plan = best_hybrid(problem)
    assert_holds(problem, plan)
    least = least_seconds(problem)
    assert plan.lower_bound_seconds <= least * (1 + 1e-12)
    assert plan.seconds_per_sample >= least * (1 - 1e-12)


def test_a_search_that_is_cut_says_no_more_than_it_knows() -> None:
    problem = replace(random_problem(3, nodes=5), memory_bytes=1e9)
    plan = best_hybrid(problem, lambda: True)
    assert_holds(problem, plan)
    assert plan.lower_bound_seconds <= best_hybrid(problem).seconds_per_sample <= plan.seconds_per_sample


@pytest.mark.fuzz
@pytest.mark.parametrize("seed", random_seeds(100))
def test_alternatives_fit_exactly_where_some_do(seed: int) -> None:
    random = np.random.default_rng(seed)
    seconds = random.integers(0, 12, (5, 3)).astype(float)
    seconds[random.random((5, 3)) < 0.2] = np.inf
    seconds[:, 0] = random.integers(0, 12, 5)
    item_bytes = random.integers(0, 12, (5, 3)).astype(float)
    limit, memory = float(random.integers(0, 40)), float(random.integers(0, 40))
    rows = range(5)
    fits = any(
        sum(seconds[row, one] for row, one in zip(rows, picked, strict=True)) <= limit
        and sum(item_bytes[row, one] for row, one in zip(rows, picked, strict=True)) <= memory
        for picked in product(range(3), repeat=5)
    )
    choice = np.empty(5, dtype=np.int64)
    assert (choose(seconds, item_bytes, limit, memory, choice) == FITS) == fits
    if fits:
        assert seconds[rows, choice].sum() <= limit
        assert item_bytes[rows, choice].sum() <= memory


def test_a_choice_that_is_given_up_proves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a knapsack is not decided the plan holds, and the bound falls back on the devices' work."""
    problem, decided = replace(random_problem(11, nodes=5), memory_bytes=1e9), limit_search.chains_within

    def given_up(*arguments: Any) -> int:
        return decided(*arguments) + 1

    exact = best_hybrid(problem)
    monkeypatch.setattr(limit_search, "chains_within", given_up)
    plan = best_hybrid(problem)
    assert_holds(problem, plan)
    assert plan.lower_bound_seconds < exact.lower_bound_seconds
