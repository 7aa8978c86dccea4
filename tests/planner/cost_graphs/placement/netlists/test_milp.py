"""The integer programme against every assignment of small problems."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from planner.cost_graphs.placement.netlists.milp import better_or_bound
from planner.cost_graphs.placement.netlists.netlist import Netlist, loads_of, netlist_of
from planner.partition.out_of_time import never
from planner.partition.placement.packing import fits
from tests.planner.cost_graphs.placement.small_problems import random_problem


def _best_of_all(netlist: Netlist) -> float:
    choices = map(np.array, itertools.product(range(netlist.num_devices), repeat=netlist.num_cells))
    return min(
        (float(loads_of(netlist, devices).max()) for devices in choices if fits(netlist, devices)), default=np.inf
    )


@pytest.mark.parametrize("number", range(15))
def test_finds_the_best_below_a_loose_value_and_proves_it(number: int) -> None:
    netlist = netlist_of(random_problem(number, nodes=6, classes=(1, 2), tightness=1.5))
    best = _best_of_all(netlist)
    if np.isinf(best):
        assert better_or_bound(netlist, 1e3, questions=10_000, out_of_time=never).devices is None
        return
    answer = better_or_bound(netlist, best * 1.3 + 1.0, questions=10_000, out_of_time=never)
    assert answer.devices is not None
    assert loads_of(netlist, answer.devices).max() == pytest.approx(best, rel=2e-6)
    assert best * (1 - 5e-6) - 1e-5 <= answer.lower_bound_seconds <= best * (1 + 1e-9)


@pytest.mark.parametrize("number", range(8))
def test_proves_that_nothing_is_better_than_the_best(number: int) -> None:
    netlist = netlist_of(random_problem(number, nodes=6, classes=(1, 2), tightness=3.0))
    best = _best_of_all(netlist)
    answer = better_or_bound(netlist, best, questions=10_000, out_of_time=never)
    assert best * (1 - 3e-6) <= answer.lower_bound_seconds <= best


def test_a_programme_that_presolve_fails_on_is_solved_without() -> None:
    netlist = netlist_of(random_problem(301_000_038, nodes=6, classes=(1, 2)))
    best = _best_of_all(netlist)
    answer = better_or_bound(netlist, best, questions=10_000, out_of_time=never)
    assert answer.is_complete
    assert best * (1 - 3e-6) <= answer.lower_bound_seconds <= best


def test_times_in_microseconds_are_told_apart() -> None:
    problem = random_problem(3, nodes=6, classes=(1, 2), tightness=3.0)
    problem.seconds[:] *= 1e-9
    problem.transfer_seconds[:] *= 1e-9
    netlist = netlist_of(problem)
    best = _best_of_all(netlist)
    answer = better_or_bound(netlist, best * 1.2, questions=10_000, out_of_time=never)
    assert answer.devices is not None
    assert loads_of(netlist, answer.devices).max() == pytest.approx(best, rel=2e-6)


def test_a_bound_holds_when_time_is_out() -> None:
    netlist = netlist_of(random_problem(3, nodes=40, classes=(1, 3)))
    answer = better_or_bound(netlist, 1e6, questions=0, out_of_time=never)
    assert 0.0 <= answer.lower_bound_seconds < 1e6
