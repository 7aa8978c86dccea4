"""The kernel's running sums against what the devices alone give."""

from __future__ import annotations

import numpy as np
import pytest

from planner.cost_graphs.placement.costs import device_bytes, device_loads
from planner.cost_graphs.placement.netlists import annealing_kernel
from planner.cost_graphs.placement.netlists.annealing import annealed
from planner.cost_graphs.placement.netlists.netlist import loads_of, netlist_of
from planner.partition.out_of_time import never
from planner.partition.placement.draws_kernel import EXPONENTIAL
from planner.partition.placement.packing import first_packing, fits
from tests.planner.cost_graphs.placement.small_problems import random_problem


@pytest.mark.parametrize("number", range(8))
def test_loads_of_a_netlist_are_those_of_its_problem(number: int) -> None:
    problem = random_problem(number, nodes=40, classes=(2, 3))
    netlist = netlist_of(problem)
    devices = np.random.default_rng(number).integers(0, 5, netlist.num_cells)
    expected = device_loads(problem, devices[netlist.cell_of_node])
    np.testing.assert_allclose(loads_of(netlist, devices), expected)
    arena, state = annealing_kernel.arena_of(netlist), annealing_kernel.state_of(netlist, devices)
    annealing_kernel.recount(arena, state)
    np.testing.assert_allclose(state.load, expected)
    np.testing.assert_allclose(state.held, device_bytes(problem, devices[netlist.cell_of_node]))


@pytest.mark.parametrize("number", range(6))
def test_running_sums_and_counts_hold_after_many_steps(number: int) -> None:
    netlist = netlist_of(random_problem(number, nodes=50, classes=(1, 3), tightness=1.2))
    start = first_packing(netlist)
    assert start is not None
    arena, state = annealing_kernel.arena_of(netlist), annealing_kernel.state_of(netlist, start)
    annealing_kernel.recount(arena, state)
    state.best_value[0], state.doublings[0] = state.load.max(), 3
    annealing_kernel.anneal(arena, state, EXPONENTIAL, 0.5, np.array([1.0, 0.5]), 80, 80, 20_000)
    running = [field.copy() for field in (state.load, state.held, state.pins)]
    annealing_kernel.recount(arena, state)
    for running_sum, counted in zip(running, (state.load, state.held, state.pins), strict=True):
        np.testing.assert_allclose(running_sum, counted, atol=1e-6)
    assert fits(netlist, state.best)
    assert loads_of(netlist, state.best).max() == pytest.approx(state.best_value[0])


def test_a_search_ends_at_its_target() -> None:
    netlist = netlist_of(random_problem(2, nodes=40, classes=(1, 3)))
    start = first_packing(netlist)
    assert start is not None
    _, best = annealed(netlist, start, steps=200_000, target_seconds=0.0, out_of_time=never)
    _, value = annealed(netlist, start, steps=10**15, target_seconds=best * 1.05, out_of_time=never)
    assert value <= best * 1.05
