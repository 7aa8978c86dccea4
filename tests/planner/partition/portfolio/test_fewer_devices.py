"""Training steps of few microbatches on some of many devices."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from planner.partition.modes.optimal import optimal
from planner.partition.objective import Objective, Training
from planner.partition.portfolio.fewer_devices import offer_fewer_devices
from planner.partition.portfolio.portfolio import Portfolio
from planner.partition.problem import PartitionProblem
from planner.partition.request import Request
from planner.partition.score import score
from tests.nightly import nightly
from tests.planner.partition.problems import chain

REQUEST = Request(mode="optimal", objective=Objective.STEP_TIME, effort=0.1)


def program(speeds: list[float], host: list[int], **more: object) -> PartitionProblem:
    return chain(
        [[speed * (1 + node % 3) for node in range(24)] for speed in speeds],
        per_byte=[[0.01 if one == other else 0.5 for other in host] for one in host],
        training=Training(microbatches=4),
        **more,
    )


def offered(problem: PartitionProblem) -> Portfolio:
    portfolio = Portfolio(problem, REQUEST)
    offer_fewer_devices(portfolio)
    return portfolio


def test_slow_devices_are_left_out_and_the_step_is_over_sooner() -> None:
    """On each host a quick one stands behind one that takes four times as long. Of one host they are offered so."""
    problem = program([4.0, 1.0] * 8, [device // 2 for device in range(16)])
    plan = optimal(problem, REQUEST)
    assert {device % 2 for device in plan.device_of_stage} == {1}
    best = offered(program([4.0, 1.0] * 8, [0] * 16)).best
    assert best is not None
    assert {device % 2 for device in best.assignment.device_of_stage} == {1}


def test_whole_hosts_are_chosen_where_links_between_them_are_dear() -> None:
    """The quickest devices are on a host each; a host of four that are nearly as quick needs no other."""
    problem = program(
        [1.0, 3.0, 3.0, 3.0] * 4 + [1.1] * 4, [device // 4 for device in range(20)], value_bytes=[80] * 25
    )
    best = offered(problem).best
    assert best is not None
    assert set(best.assignment.device_of_stage) <= set(range(16, 20))


def test_devices_that_nodes_are_fixed_to_are_kept() -> None:
    problem = program([9.0] + [1.0] * 15, [0] * 16, fixed={5: 0})
    for one in (offered(problem).best, score(problem, optimal(problem, REQUEST), Objective.STEP_TIME)):
        if one is not None:
            assert one.assignment.device_of_stage[one.assignment.stage_of_node[5]] == 0


def test_a_device_that_can_run_little_is_not_among_the_quickest() -> None:
    problem = program([1.0, 1.5] * 8, [0] * 16)
    seconds = problem.compute_seconds.copy()
    seconds[:8, 1:] = np.inf
    barred = replace(problem, compute_seconds=seconds)
    best = offered(barred).best
    assert best is not None
    assert set(best.assignment.device_of_stage) & set(range(8, 16))


@pytest.mark.parametrize("num_devices", [8, *nightly([16])])
def test_more_devices_make_no_step_longer(num_devices: int) -> None:
    speeds = np.random.default_rng(num_devices).choice([1.0, 2.0, 4.0], 2 * num_devices).tolist()
    host = [device // 4 for device in range(2 * num_devices)]
    some = program(speeds[:num_devices], host[:num_devices])
    every = program(speeds, host)
    values = [score(one, optimal(one, REQUEST), Objective.STEP_TIME).value for one in (some, every)]
    assert values[1] <= values[0] * (1 + 1e-9)
