"""Small programs with stages anywhere are as good as trying every assignment, and proven."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given

from planner.errors import Infeasible
from planner.partition.modes.optimal import optimal
from planner.partition.objective import Objective
from planner.partition.portfolio import exact_stages
from planner.partition.portfolio.portfolio import Portfolio
from planner.partition.problem import PartitionProblem
from planner.partition.request import Request
from tests.planner.partition.exact import every_assignment, fits, least, optima, value_of
from tests.planner.partition.portfolio.small_programs import small_program
from tests.planner.partition.problems import problem as problem_of
from tests.planner.partition.problems import problems
from tests.random_examples import random_examples, random_seeds

ANYWHERE = Request(mode="optimal", objective=Objective.LATENCY, free=True)
OBJECTIVES = [Objective.LATENCY, Objective.THROUGHPUT, Objective.MEMORY]


def check_is_least(program: PartitionProblem, *objectives: Objective) -> None:
    for objective, best in optima(program, objectives, every_assignment(program, free=True)).items():
        asked = replace(ANYWHERE, objective=objective)
        if np.isinf(best):
            with pytest.raises(Infeasible):
                optimal(program, asked)
            continue
        assignment = optimal(program, asked)
        assert fits(program, assignment)
        assert value_of(program, assignment, objective) == pytest.approx(best, rel=1e-8, abs=1e-12), objective
        assert assignment.lower_bound_seconds == pytest.approx(best, rel=1e-8, abs=1e-12), objective


def check_finds_least(program: PartitionProblem) -> None:
    """By itself, with nothing in hand."""
    for objective, best in optima(program, OBJECTIVES, every_assignment(program, free=True)).items():
        portfolio = Portfolio(program, replace(ANYWHERE, objective=objective))
        exact_stages.least_of_all(portfolio)
        if portfolio.best is None:
            assert np.isinf(best)
            continue
        assert portfolio.best.value == pytest.approx(best, rel=1e-8), objective
        assert portfolio.proven_bound == pytest.approx(best, rel=1e-8), objective


@pytest.mark.slow
@pytest.mark.parametrize("seed", [18, 31, 62, 104, 113, 160, 169, 194])
def test_plans_that_list_scheduling_alone_left_above_the_optimum(seed: int) -> None:
    check_is_least(small_program(seed), Objective.LATENCY)


@pytest.mark.slow
@pytest.mark.fuzz
def test_small_programs_are_least_and_proven() -> None:
    for seed in random_seeds(6):
        check_is_least(small_program(seed), *OBJECTIVES)


@pytest.mark.slow
@random_examples(25)
@given(program=problems(max_nodes=4, max_devices=3, barred=True))
def test_groups_views_and_nodes_that_read_nothing(program: PartitionProblem) -> None:
    check_is_least(program, *OBJECTIVES)


def test_a_device_runs_two_stages_around_anothers() -> None:
    """Bundles moved from device to device ended 7 % above, though links are equal and memory is ample."""
    program = problem_of(
        compute_seconds=[[3.0] * 4, [6.0] * 4, [6.0] * 4],
        reads=[[0], [], [], [1, 2, 3]],
        value_bytes=[7, 10, 1, 2, 7],
        latency=0.25,
        per_byte=0.0625,
    )
    check_is_least(program, Objective.THROUGHPUT)


@pytest.mark.parametrize("relay", [False, True])
@pytest.mark.parametrize(
    "program",
    [
        # Nodes 1 and 3 are one stage, for they receive the same, behind that of node 2.
        {
            "reads": [[0], [1], [1], [1, 3], [4]],
            "fixed": {0: 0, 1: 2, 2: 1, 3: 2, 4: 0},
            "value_bytes": [1, 9, 1, 1, 1, 1],
        },
        # Node 1 is the first stage, where the program's input is.
        {"reads": [[], [0], [1, 2]], "fixed": {0: 0, 1: 1, 2: 1}, "value_bytes": [9, 1, 1, 1]},
        # Node 1 is the last stage, where the program's outputs go.
        {"reads": [[0], [1], [1]], "fixed": {0: 0, 1: 1, 2: 2}, "value_bytes": [1, 1, 9, 1], "returned": (2, 3)},
        # Of a relay node 1 is the third stage: what it makes passes no other.
        {"reads": [[0], [1], [1], [2, 3]], "fixed": {0: 0, 1: 2, 2: 1, 3: 0}, "value_bytes": [1, 1, 9, 1, 1]},
    ],
    ids=["one behind another", "first", "last", "of a relay"],
)
def test_stages_change_places_only_where_that_changes_nothing(program: dict[str, Any], relay: bool) -> None:
    seconds = [1.0] * len(program["reads"])
    whole = problem_of(compute_seconds=[seconds] * 3, latency=0.1, per_byte=0.5, relay=relay, **program)
    check_finds_least(whole)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [15, 31, 39])
def test_what_is_placed_is_counted_once(seed: int) -> None:
    """States that a prefix has are not among those that are missing."""
    check_finds_least(small_program(seed))


def test_what_only_has_an_order_waits_for_nothing() -> None:
    """Nodes 1 and 2 read nothing, and stand between two that are one group: no stage behind waits for their second."""
    program = problem_of(
        compute_seconds=[[0.0, 0.0, 1.0, 1.0]] * 3,
        reads=[[0], [], [], []],
        value_bytes=[0] * 5,
        groups=[(0, 3)],
        latency=0.25,
    )
    check_is_least(program, Objective.LATENCY)
    assert least(program, Objective.LATENCY, every_assignment(program, free=True)) == pytest.approx(1.0)


def test_nothing_is_proven_where_prefixes_are_left(monkeypatch: pytest.MonkeyPatch) -> None:
    program = small_program(104)
    best = least(program, Objective.LATENCY, every_assignment(program, free=True))
    monkeypatch.setattr(exact_stages, "MAX_PREFIXES", 2)
    assignment = optimal(program, ANYWHERE)
    assert assignment.lower_bound_seconds <= best < value_of(program, assignment, Objective.LATENCY)
