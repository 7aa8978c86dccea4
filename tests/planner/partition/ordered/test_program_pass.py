"""Orders of devices that are tried where there are too many for all."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from planner.partition.ordered.program_pass import nearest_neighbours
from tests.planner.partition.problems import chain


@pytest.mark.parametrize("seed", list(range(8)))
def test_a_chain_goes_on_over_the_fastest_link_that_is_left(seed: int) -> None:
    """By latency where two are as fast, then as listed: few speeds and latencies, so that many are alike."""
    draw = np.random.default_rng(seed)
    speeds, latencies = draw.choice([1.0, 2.0], (9, 9)), draw.choice([0.1, 0.2, 0.3], (9, 9))
    order = nearest_neighbours(chain([[1.0] * 3] * 9, per_byte=speeds.tolist(), latency=latencies.tolist()))
    assert sorted(order) == list(range(9))
    for place, (here, after) in enumerate(itertools.pairwise(order), start=1):
        assert after == min(order[place:], key=lambda device: (speeds[here, device], latencies[here, device], device))
