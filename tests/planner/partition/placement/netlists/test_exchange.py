"""Exchanged contents against every permutation of the devices."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest

from planner.partition.placement.netlists.exchange import exchanged
from planner.partition.placement.netlists.netlist import loads_of, netlist_of
from planner.partition.placement.netlists.packing import first_packing, fits
from tests.planner.partition.placement.small_problems import random_problem
from tests.random_examples import random_seeds


@pytest.mark.parametrize("number", range(20))
def test_is_the_best_of_all_permutations(number: int) -> None:
    netlist = netlist_of(random_problem(number, nodes=14, classes=(1, 2, 1, 1), tightness=1.6))
    devices = first_packing(netlist)
    assert devices is not None
    matching = exchanged(netlist, devices)
    assert matching is not None
    assert fits(netlist, matching)
    permuted = [np.array(order)[devices] for order in itertools.permutations(range(5))]
    best = min(float(loads_of(netlist, other).max()) for other in permuted if fits(netlist, other))
    assert loads_of(netlist, matching).max() == pytest.approx(best)


@pytest.mark.fuzz
def test_contents_go_only_where_they_fit() -> None:
    """Devices of unequal memory, each filled to the last byte or nearly."""
    bound = 0
    for number in random_seeds(20):
        rng = np.random.default_rng(number)
        problem = random_problem(number, nodes=12, classes=(1, 1, 1, 1), tightness=np.inf)
        devices = rng.integers(0, 4, netlist_of(problem).num_cells)
        used_bytes = np.bincount(devices, weights=netlist_of(problem).held_bytes, minlength=4)
        netlist = netlist_of(replace(problem, class_bytes=used_bytes + rng.integers(0, 8, 4)))
        if not np.isfinite(loads_of(netlist, devices)).all():
            continue
        matching = exchanged(netlist, devices)
        assert matching is not None
        assert fits(netlist, matching)
        permuted = [np.array(order)[devices] for order in itertools.permutations(range(4))]
        values = [float(loads_of(netlist, other).max()) for other in permuted]
        best = min(value for value, other in zip(values, permuted, strict=True) if fits(netlist, other))
        assert loads_of(netlist, matching).max() == pytest.approx(best)
        bound += best > min(values)
    assert bound


def test_like_devices_have_nothing_to_exchange() -> None:
    netlist = netlist_of(random_problem(1, nodes=12, classes=(4,)))
    assert exchanged(netlist, np.arange(netlist.num_cells) % 4) is None
