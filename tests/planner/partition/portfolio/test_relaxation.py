"""The additive relaxation's devices, and that it never costs more than the program."""

from __future__ import annotations

import numpy as np

from planner.partition.portfolio.relaxation import relaxed
from planner.partition.problem import PartitionProblem
from planner.partition.program_orders import bundles_of
from tests.planner.partition.problems import chain


def on_hosts(host: list[int], speeds: list[float]) -> PartitionProblem:
    return chain(
        [[speed] * 6 for speed in speeds],
        per_byte=[[0.1 if one == other else 1.0 for other in host] for one in host],
    )


def test_devices_of_a_kind_are_one_class_whatever_their_hosts() -> None:
    """But one that has no company on its host has no link as good as theirs."""
    problem = on_hosts([0, 0, 1, 1, 2], [1.0, 2.0, 1.0, 2.0, 1.0])
    relaxation = relaxed(problem, bundles_of(problem))
    assert relaxation.placement.class_devices.tolist() == [2, 2, 1]
    assert relaxation.devices.tolist() == [0, 2, 1, 3, 4]
    assert relaxation.placement.seconds[:, 0].tolist() == [1.0, 2.0, 1.0]
    assert np.allclose(relaxation.placement.transfer_seconds[:, 0], [0.1, 0.1, 1.0])
