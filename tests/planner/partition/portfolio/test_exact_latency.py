"""Stages anywhere for a lone batch: small programs are as good as trying every assignment, and proven."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given

from planner.errors import Infeasible
from planner.partition.modes.optimal import optimal
from planner.partition.objective import Objective
from planner.partition.portfolio import exact_latency
from planner.partition.problem import PartitionProblem
from planner.partition.request import Request
from tests.planner.partition.exact import every_assignment, fits, least, value_of
from tests.planner.partition.portfolio.small_programs import small_program
from tests.planner.partition.problems import problem as problem_of
from tests.planner.partition.problems import problems
from tests.random_examples import random_examples, random_seeds

ANYWHERE = Request(mode="optimal", objective=Objective.LATENCY, free=True)


def check_is_least(program: PartitionProblem) -> None:
    best = least(program, Objective.LATENCY, every_assignment(program, free=True))
    if np.isinf(best):
        with pytest.raises(Infeasible):
            optimal(program, ANYWHERE)
        return
    assignment = optimal(program, ANYWHERE)
    assert fits(program, assignment)
    assert value_of(program, assignment, Objective.LATENCY) == pytest.approx(best, rel=1e-8, abs=1e-12)
    assert assignment.lower_bound_seconds == pytest.approx(best, rel=1e-8, abs=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [18, 31, 62, 104, 113, 160, 169, 194])
def test_plans_that_list_scheduling_alone_left_above_the_optimum(seed: int) -> None:
    check_is_least(small_program(seed))


@pytest.mark.slow
@pytest.mark.fuzz
def test_small_programs_are_least_and_proven() -> None:
    for seed in random_seeds(6):
        check_is_least(small_program(seed))


@pytest.mark.slow
@random_examples(25)
@given(program=problems(max_nodes=4, max_devices=3, barred=True))
def test_groups_views_and_nodes_that_read_nothing(program: PartitionProblem) -> None:
    check_is_least(program)


def test_what_only_has_an_order_waits_for_nothing() -> None:
    """Nodes 1 and 2 read nothing, and stand between two that are one group: no stage behind waits for their second."""
    program = problem_of(
        compute_seconds=[[0.0, 0.0, 1.0, 1.0]] * 3,
        reads=[[0], [], [], []],
        value_bytes=[0] * 5,
        groups=[(0, 3)],
        latency=0.25,
    )
    check_is_least(program)
    assert least(program, Objective.LATENCY, every_assignment(program, free=True)) == pytest.approx(1.0)


def test_nothing_is_proven_where_prefixes_are_left(monkeypatch: pytest.MonkeyPatch) -> None:
    program = small_program(104)
    best = least(program, Objective.LATENCY, every_assignment(program, free=True))
    monkeypatch.setattr(exact_latency, "MAX_PREFIXES", 2)
    assignment = optimal(program, ANYWHERE)
    assert assignment.lower_bound_seconds <= best < value_of(program, assignment, Objective.LATENCY)
