"""single_pass_seconds: worked examples, and a slow twin on random placements."""

from __future__ import annotations

import numpy as np
import pytest

from planner.cost_graphs.placement.problem import PlacementProblem
from planner.cost_graphs.single_pass.seconds import single_pass_seconds
from planner.errors import GraphError
from tests.planner.cost_graphs.single_pass.single_pass_cases import build, random_problem, slow_single_pass

HOST, FIRST, SECOND = 0, 1, 2


def chain(num_nodes: int) -> PlacementProblem:
    """Each node takes 10 on a host, 1 on an accelerator, and 2 to move what it makes."""
    return build(
        host=[10] * num_nodes,
        accelerator=[1] * num_nodes,
        sizes=[1] * num_nodes,
        arcs=[(node, node + 1) for node in range(num_nodes - 1)],
        costs=[2] * num_nodes,
    )


@pytest.mark.parametrize(
    ("devices", "seconds"),
    [
        ([HOST, HOST, HOST], 30),
        # Nothing enters or leaves.
        ([FIRST, FIRST, FIRST], 3),
        # Out of the first 2, into the second 2.
        ([FIRST, FIRST, SECOND], (1 + 1 + 2) + (2 + 1)),
        # A host pays nothing, an accelerator both ways.
        ([HOST, FIRST, HOST], 10 + (2 + 1 + 2) + 10),
        # The first device's second piece starts after the other's block.
        ([FIRST, SECOND, FIRST], (1 + 2) + (2 + 1 + 2) + (2 + 1)),
    ],
)
def test_a_chain(devices: list[int], seconds: float) -> None:
    assert single_pass_seconds(chain(3), devices) == pytest.approx(seconds)


def test_a_tensor_moves_once_whatever_its_readers() -> None:
    problem = build(
        host=[10] * 3, accelerator=[1] * 3, sizes=[0] * 3, arcs=[(0, 1), (0, 2)], costs=[2, 0, 0], devices=2
    )
    assert single_pass_seconds(problem, [FIRST, SECOND, SECOND]) == pytest.approx((1 + 2) + (2 + 1 + 1))


def test_hosts_run_any_number_of_nodes_at_once() -> None:
    problem = build(host=[5, 7, 3], accelerator=[1] * 3, sizes=[0] * 3, arcs=[(0, 2), (1, 2)], costs=[1, 1, 0])
    assert single_pass_seconds(problem, [HOST] * 3) == pytest.approx(7 + 3)


def test_a_device_runs_its_pieces_in_turn() -> None:
    """0 -> 1 -> 2 with 0 and 2 on one device, and 3 beside them: piece one is {0, 3}, piece two {2}."""
    problem = build(host=[10] * 4, accelerator=[1, 1, 1, 50], sizes=[0] * 4, arcs=[(0, 1), (1, 2)], costs=[2, 2, 0, 0])
    assert single_pass_seconds(problem, [FIRST, SECOND, FIRST, FIRST]) == pytest.approx(
        (1 + 50 + 2) + (2 + 1 + 2) + (2 + 1)
    )


def test_blocks_that_wait_for_each_other_never_finish() -> None:
    problem = build(host=[10] * 4, accelerator=[1] * 4, sizes=[0] * 4, arcs=[(0, 1), (2, 3)], costs=[1] * 4, devices=2)
    assert single_pass_seconds(problem, [FIRST, SECOND, SECOND, FIRST]) is None


def test_a_cycle_of_nodes_is_named() -> None:
    problem = build(host=[1] * 2, accelerator=[1] * 2, sizes=[0] * 2, arcs=[(0, 1), (1, 0)], costs=[1] * 2, devices=2)
    with pytest.raises(GraphError, match="'node 0' waits for itself"):
        single_pass_seconds(problem, [FIRST, FIRST])


def test_agrees_with_a_slow_twin() -> None:
    random = np.random.default_rng(5)
    cyclic = 0
    for _ in range(150):
        problem = random_problem(random, int(random.integers(1, 12)), devices=3)
        devices = random.integers(0, problem.num_devices, problem.num_nodes).tolist()
        expected = slow_single_pass(problem, devices)
        cyclic += expected is None
        assert single_pass_seconds(problem, devices) == (None if expected is None else pytest.approx(expected))
    assert 0 < cyclic < 150
