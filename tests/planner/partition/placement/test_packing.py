"""First packings: one is found wherever there is one, on problems small enough to try."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest

from planner.cost_graphs.placement.netlists.netlist import Netlist, netlist_of
from planner.partition.placement.packing import first_packing, fits
from tests.planner.cost_graphs.placement.small_problems import random_problem
from tests.random_examples import random_seeds


def can_be_packed(netlist: Netlist) -> bool:
    choices = itertools.product(range(netlist.num_devices), repeat=netlist.num_cells)
    return any(fits(netlist, np.array(choice)) for choice in choices)


def test_a_large_cell_leaves_the_device_to_one_that_runs_nowhere_else() -> None:
    """The largest fits each device, the last runs on the first alone: 13 + 7 bytes are too many for it."""
    problem = random_problem(1, nodes=5, classes=(1, 2), groups=5)
    problem.seconds[:] = 1.0
    problem.seconds[0, 1] = problem.seconds[1, 4] = np.inf
    sizes, rooms = np.array([13.0, 4.0, 0.0, 7.0, 7.0]), np.array([16.5, 16.5])
    netlist = netlist_of(replace(problem, node_bytes=sizes, class_bytes=rooms))
    packing = first_packing(netlist)
    assert packing is not None
    assert fits(netlist, packing)


@pytest.mark.filterwarnings("error")
def test_a_cell_that_no_device_runs_cannot_be_packed() -> None:
    problem = random_problem(1, nodes=5, classes=(1, 2), groups=5)
    problem.seconds[:, 2] = np.inf
    assert first_packing(netlist_of(problem)) is None


@pytest.mark.fuzz
def test_whatever_can_be_packed_is() -> None:
    impossible, numbers = 0, random_seeds(40)
    for number in numbers:
        problem = random_problem(number, nodes=6, classes=(1, 2), groups=6)
        rooms = np.random.default_rng(number).integers(5, 16, 2).astype(np.float64)
        netlist = netlist_of(replace(problem, class_bytes=rooms))
        packing = first_packing(netlist)
        impossible += packing is None
        assert can_be_packed(netlist) if packing is not None else not can_be_packed(netlist), number
    assert 0 < impossible < len(numbers)


def test_packing_many_cells_ends() -> None:
    """Three devices that half of the cells' bytes fill: nothing to be found, and too many ways to try all."""
    problem = random_problem(3, nodes=300, classes=(1, 2), groups=300)
    tight = replace(problem, class_bytes=np.full(2, problem.node_bytes.sum() / 6))
    assert first_packing(netlist_of(tight)) is None
