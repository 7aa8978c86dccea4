"""Cells placed anew, against every placement that keeps the rest where it is."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from planner.cost_graphs.placement.netlists.neighbourhoods import Limits, NeighbourhoodSearch, placed_anew, region
from planner.cost_graphs.placement.netlists.netlist import Netlist, loads_of, netlist_of
from planner.partition.out_of_time import never
from planner.partition.placement.packing import first_packing, fits
from planner.partition.problem import Integers
from tests.planner.cost_graphs.placement.small_problems import random_problem

_LIMITS = Limits(nodes=10_000, questions=100_000)


def _least(netlist: Netlist, devices: Integers, freed: Integers, cells: Integers) -> float:
    """Of the freed devices' greatest load, over all choices for `cells`."""
    best = np.inf
    for choice in itertools.product(freed.tolist(), repeat=cells.size):
        changed = devices.copy()
        changed[cells] = choice
        if fits(netlist, changed):
            best = min(best, float(loads_of(netlist, changed)[freed].max()))
    return best


@pytest.mark.parametrize("num_cells", [3, 6, 20])
@pytest.mark.parametrize("number", range(6))
def test_finds_the_best_of_the_neighbourhood(number: int, num_cells: int) -> None:
    netlist = netlist_of(random_problem(number, nodes=14, classes=(1, 3), tightness=1.6))
    devices = first_packing(netlist)
    assert devices is not None
    freed = np.array([0, 2])
    cells = np.flatnonzero(np.isin(devices, freed))[:num_cells]
    before = float(loads_of(netlist, devices)[freed].max())
    least = _least(netlist, devices, freed, cells)
    better, is_final = placed_anew(netlist, devices, freed, cells, _LIMITS, never)
    assert is_final
    if better is None:
        assert least == pytest.approx(before, rel=3e-6)
        return
    assert fits(netlist, better)
    loads, others = loads_of(netlist, better), np.setdiff1d(np.arange(netlist.num_devices), freed)
    assert loads[freed].max() == pytest.approx(least, rel=3e-6)
    assert loads[others] == pytest.approx(loads_of(netlist, devices)[others])
    kept = np.setdiff1d(np.arange(netlist.num_cells), cells)
    assert (better[kept] == devices[kept]).all()


def test_a_region_is_within_the_freed_devices_and_not_too_large() -> None:
    netlist = netlist_of(random_problem(2, nodes=700, classes=(1, 3), tightness=np.inf, groups=700))
    devices = np.arange(netlist.num_cells) % 4
    freed = np.array([1, 3])
    cells = region(netlist, devices, freed, 400, np.random.default_rng(0))
    assert cells.size == 200
    assert np.isin(devices[cells], freed).all()


def test_the_search_never_gets_worse_and_ends() -> None:
    netlist = netlist_of(random_problem(9, nodes=12, classes=(1, 2), tightness=1.6))
    devices = first_packing(netlist)
    assert devices is not None
    search, value = NeighbourhoodSearch(netlist), np.inf
    for _ in range(1_000):
        if search.is_exhausted:
            break
        devices = search.improved(devices, attempts=4, questions=1_000, out_of_time=never)
        assert fits(netlist, devices)
        assert loads_of(netlist, devices).max() <= value
        value = float(loads_of(netlist, devices).max())
    assert search.is_exhausted
