"""Exchanged contents against every permutation of the devices."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from planner.partition.placement.netlists.exchange import exchanged
from planner.partition.placement.netlists.netlist import loads_of, netlist_of
from planner.partition.placement.netlists.packing import first_packing, fits
from tests.planner.partition.placement.small_problems import random_problem


@pytest.mark.parametrize("number", range(20))
def test_is_the_best_of_all_permutations(number: int) -> None:
    netlist = netlist_of(random_problem(number, nodes=14, classes=(1, 2, 1, 1), tightness=1.6))
    devices = first_packing(netlist)
    assert devices is not None
    found = exchanged(netlist, devices)
    assert found is not None
    assert fits(netlist, found)
    permuted = [np.array(order)[devices] for order in itertools.permutations(range(5))]
    best = min(float(loads_of(netlist, other).max()) for other in permuted if fits(netlist, other))
    assert loads_of(netlist, found).max() == pytest.approx(best)


def test_like_devices_have_nothing_to_exchange() -> None:
    netlist = netlist_of(random_problem(1, nodes=12, classes=(4,)))
    assert exchanged(netlist, np.arange(netlist.num_cells) % 4) is None
