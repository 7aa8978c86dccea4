"""Labels: what a budget leaves out stays in the bound, and which devices are alike."""

from __future__ import annotations

import math

import numpy as np
import pytest

from planner.cost_graphs.placement.problem import PlacementProblem
from planner.cost_graphs.single_pass import latency
from planner.cost_graphs.single_pass.blocks import pass_blocks, pass_ideals
from planner.cost_graphs.single_pass.chain import ChainSpace
from planner.cost_graphs.single_pass.contraction import pass_units
from planner.cost_graphs.single_pass.cutting_planes import FlowProgramme
from planner.cost_graphs.single_pass.devices_of_runs import PassIncumbent
from planner.cost_graphs.single_pass.finish_times import FinishTimes
from planner.cost_graphs.single_pass.label_setting import Budget, OpenChains, search_labels
from planner.cost_graphs.single_pass.latency import best_latency
from planner.cost_graphs.single_pass.unit_graph import pass_graph
from planner.partition.out_of_time import never
from planner.partition.placement.device_states import uncounted_states
from tests.nightly import nightly
from tests.planner.cost_graphs.placement.small_problems import random_problem
from tests.planner.cost_graphs.single_pass import single_pass_cases


def on_any_device(number: int, *, nodes: int) -> PlacementProblem:
    """Four devices of two classes, all of which run every node: labels are very many."""
    problem = random_problem(number, nodes=nodes, classes=(2, 2), tightness=2.5)
    problem.seconds[~np.isfinite(problem.seconds)] = 9.0
    return problem


@pytest.mark.slow
@pytest.mark.parametrize("max_extensions", [20_000, *nightly([50_000])])
def test_searches_end_within_their_budget(max_extensions: int, monkeypatch: pytest.MonkeyPatch) -> None:
    budgets = list[Budget]()

    def noted(*, num_extensions: int) -> Budget:
        budgets.append(Budget(num_extensions=num_extensions))
        return budgets[-1]

    monkeypatch.setattr(latency, "MAX_EXTENSIONS", max_extensions)
    monkeypatch.setattr(latency, "Budget", noted)
    placement = best_latency(on_any_device(1, nodes=11))
    assert placement.lower_bound_seconds < placement.value_seconds
    assert min(budget.num_extensions for budget in budgets) < max_extensions / 2
    assert all(budget.num_extensions >= 0 for budget in budgets)


def labels_alone(problem: PlacementProblem, budget: Budget) -> tuple[PassIncumbent, float]:
    """The search with devices told apart, and nothing known before."""
    graph = pass_graph(problem, pass_units(problem))
    ideals = pass_ideals(graph, 1000)
    assert ideals is not None
    blocks = pass_blocks(graph, ideals, 1000)
    assert blocks is not None
    programme = FlowProgramme(graph)
    chains = OpenChains(
        space=ChainSpace(graph=graph, ideals=ideals, blocks=blocks, states=uncounted_states(graph.serial.size)),
        finish_times=FinishTimes(graph, ideals, programme.source, programme.target, []),
        flow_bounds=[],
    )
    incumbent = PassIncumbent(problem, contiguous=False)
    return incumbent, search_labels(chains, incumbent, 1000, budget, never, devices_apart=True)


def test_a_device_that_is_full_and_was_busy_for_no_time_is_not_unused() -> None:
    """The first node takes all of a device's memory and no time; the second fits on another device alone."""
    problem = single_pass_cases.build(
        host=[math.inf] * 2, accelerator=[0, 1], sizes=[4, 4], arcs=[(0, 1)], costs=[0, 0], memory=4
    )
    incumbent, lower_bound = labels_alone(problem, Budget(num_extensions=1000))
    assert (incumbent.seconds, lower_bound) == (1.0, 1.0)


@pytest.mark.parametrize("number", [12, 20, 21, 39])
def test_what_a_budget_leaves_out_is_in_the_bound(number: int) -> None:
    """Some budget misses the best."""
    problem = single_pass_cases.random_problem(np.random.default_rng(number), 7)
    best, _ = labels_alone(problem, Budget(num_extensions=1_000_000))
    missed = 0
    for num_extensions in (120, 240, 480):
        budget = Budget(num_extensions=num_extensions)
        incumbent, lower_bound = labels_alone(problem, budget)
        assert budget.num_extensions >= 0
        assert lower_bound <= best.seconds
        missed += budget.num_extensions < num_extensions and incumbent.seconds > best.seconds
    assert missed
