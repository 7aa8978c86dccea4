"""Bounds against the best of all assignments, and against cases whose bound is known."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from planner.cost_graphs.placement.netlists.lower_bound import lower_bound
from planner.cost_graphs.placement.netlists.netlist import loads_of, netlist_of
from planner.partition.placement.packing import fits
from tests.planner.cost_graphs.placement.small_problems import random_problem


@pytest.mark.parametrize("number", range(20))
@pytest.mark.parametrize("tightness", [1.1, 3.0])
def test_no_assignment_is_below(number: int, tightness: float) -> None:
    netlist = netlist_of(random_problem(number, nodes=6, classes=(2, 1), tightness=tightness, groups=6))
    bound = lower_bound(netlist)
    for choice in itertools.product(range(3), repeat=netlist.num_cells):
        devices = np.array(choice)
        if fits(netlist, devices):
            assert loads_of(netlist, devices).max() >= bound * (1 - 1e-9)


def test_equal_devices_share_the_work() -> None:
    problem = random_problem(1, nodes=12, classes=(3,), groups=12)
    problem.seconds[:] = 2.0
    problem.class_bytes[:] = np.inf
    assert lower_bound(netlist_of(problem)) == pytest.approx(8.0)


def test_the_slowest_cell_is_not_divided() -> None:
    problem = random_problem(1, nodes=12, classes=(3, 1), groups=12)
    problem.seconds[:] = 1.0
    problem.seconds[:, 3] = (70.0, 50.0)
    assert lower_bound(netlist_of(problem)) == pytest.approx(50.0)


def test_little_memory_on_fast_devices_raises_it() -> None:
    problem = random_problem(1, nodes=10, classes=(1, 1), groups=10)
    problem.seconds[:] = np.array([[1.0], [10.0]])
    problem.node_bytes[:] = 1.0
    problem.class_bytes[:] = (np.inf, np.inf)
    roomy = lower_bound(netlist_of(problem))
    problem.class_bytes[:] = (5.0, np.inf)
    assert lower_bound(netlist_of(problem)) == pytest.approx(50.0)
    assert roomy == pytest.approx(100 / 11)
