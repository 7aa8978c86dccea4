"""best_latency: as good as trying everything, with a bound that holds, on graphs small enough to try."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest

from planner.cost_graphs.placement.costs import device_bytes
from planner.cost_graphs.placement.problem import PlacementProblem
from planner.cost_graphs.single_pass.latency import best_latency, path_bound
from planner.cost_graphs.single_pass.seconds import single_pass_seconds
from planner.errors import Infeasible
from tests.nightly import nightly
from tests.planner.cost_graphs.single_pass.single_pass_cases import (
    build,
    is_convex,
    least_single_pass,
    random_problem,
    slow_single_pass,
)
from tests.random_examples import random_seeds


def two_kinds(problem: PlacementProblem, random: np.random.Generator) -> PlacementProblem:
    """A second class of accelerator, of one device: other times, other memory."""
    slow = np.where(random.random(problem.num_nodes) < 0.2, np.inf, problem.seconds[1] * 2 + 1)
    return dataclasses.replace(
        problem,
        seconds=np.stack([*problem.seconds, slow]),
        transfer_seconds=np.stack([*problem.transfer_seconds, problem.transfer_seconds[1] / 2]),
        class_devices=np.array([1, 1, 1]),
        class_bytes=np.array([math.inf, problem.class_bytes[1], problem.class_bytes[1] + 4]),
        class_is_parallel=np.array([True, False, False]),
        class_names=("cpu", "quick", "roomy"),
    )


@pytest.mark.slow
@pytest.mark.parametrize("contiguous", [False, True])
@pytest.mark.parametrize("case", [*range(8), *nightly(range(8, 24))])
def test_as_good_as_trying_everything(case: int, contiguous: bool) -> None:
    random = np.random.default_rng(case)
    problem = random_problem(random, int(random.integers(2, 8)), devices=1 + case % 2)
    if case % 3 == 2:
        problem = two_kinds(problem, random)
    least = least_single_pass(problem, one_block=contiguous)
    placement = best_latency(problem, contiguous=contiguous)
    assert placement.value_seconds == pytest.approx(least)
    assert placement.lower_bound_seconds <= least + 1e-9
    assert slow_single_pass(problem, placement.device_of_node) == pytest.approx(placement.value_seconds)
    limits = problem.class_bytes[problem.class_of_device]
    assert (device_bytes(problem, placement.device_of_node) <= limits).all()
    assert not contiguous or is_convex(problem, placement.device_of_node)


@pytest.mark.fuzz
def test_the_longest_path_is_below_every_placement_and_at_some() -> None:
    """The bound before any search; hosts that are as quick as accelerators run any number of nodes at once."""
    tight = 0
    for seed in random_seeds(40):
        random = np.random.default_rng(seed)
        problem = random_problem(random, int(random.integers(2, 6)), devices=1 + seed % 2)
        if seed % 2:
            problem.seconds[0] = problem.seconds[1]
        best = least_single_pass(problem, one_block=False)
        assert path_bound(problem) <= best * (1 + 1e-12), seed
        tight += path_bound(problem) == pytest.approx(best)
    assert tight >= 20


@pytest.mark.slow
@pytest.mark.parametrize("case", [*range(8), *nightly(range(8, 24))])
def test_colocated_nodes_stay_together(case: int) -> None:
    random = np.random.default_rng(100 + case)
    count = int(random.integers(3, 8))
    groups = np.unique(random.integers(0, count - 1, count), return_inverse=True)[1]
    problem = random_problem(random, count, colocation=groups)
    placement = best_latency(problem)
    assert placement.lower_bound_seconds <= least_single_pass(problem, one_block=False) + 1e-9
    assert placement.lower_bound_seconds <= placement.value_seconds
    for group in range(int(groups.max()) + 1):
        assert len({placement.device_of_node[node] for node in np.flatnonzero(groups == group)}) == 1


def test_one_block_per_device_is_proven_optimal() -> None:
    """Twelve nodes of one byte on devices of four: two cuts at least, where moving is cheapest."""
    costs = [9, 9, 9, 1, 9, 9, 9, 2, 9, 9, 9, 9]
    problem = build(
        host=[30] * 12,
        accelerator=[1] * 12,
        sizes=[1] * 12,
        arcs=[(node, node + 1) for node in range(11)],
        costs=costs,
        devices=4,
        memory=4,
    )
    placement = best_latency(problem, contiguous=True)
    assert placement.value_seconds == pytest.approx(12 + 2 * 1 + 2 * 2)
    assert placement.gap == 0


def test_a_costless_reader_is_left_outside_where_it_does_not_fit() -> None:
    """The reader costs nothing on either, but 5 bytes; the transfer that it saves inside costs 3."""
    for memory, seconds in ((9, 1), (4, 4)):
        problem = build(
            host=[50, 0], accelerator=[1, 0], sizes=[4, 5], arcs=[(0, 1)], costs=[3, 0], memory=float(memory)
        )
        placement = best_latency(problem)
        assert (placement.value_seconds, placement.gap) == (pytest.approx(seconds), 0)


@pytest.mark.slow
def test_more_order_ideals_than_can_be_listed() -> None:
    """Twenty-four independent nodes: four devices, the hosts, and no lattice to walk."""
    random = np.random.default_rng(9)
    times = random.integers(1, 9, 24)
    problem = build(
        host=times * 6, accelerator=times, sizes=[1] * 24, arcs=[(0, 1)], costs=[1] * 24, devices=4, memory=8
    )
    placement = best_latency(problem)
    assert single_pass_seconds(problem, placement.device_of_node) == pytest.approx(placement.value_seconds)
    assert placement.lower_bound_seconds <= placement.value_seconds < times.max() * 6


@pytest.mark.slow
def test_same_input_same_placement() -> None:
    problem = random_problem(np.random.default_rng(3), 9, devices=2)
    assert best_latency(problem) == best_latency(problem)


def test_out_of_time_still_answers() -> None:
    problem = random_problem(np.random.default_rng(4), 9, devices=2)
    placement = best_latency(problem, out_of_time=lambda: True)
    assert single_pass_seconds(problem, placement.device_of_node) == pytest.approx(placement.value_seconds)
    assert placement.lower_bound_seconds <= best_latency(problem).value_seconds


def test_a_node_without_a_device_is_named() -> None:
    problem = build(host=[math.inf] * 2, accelerator=[1, 1], sizes=[3, 9], arcs=[(0, 1)], costs=[1, 1], memory=4)
    with pytest.raises(Infeasible, match=r"node 'node 1' holds 9 bytes.*has 4 bytes; give it 5 bytes more"):
        best_latency(problem)
    problem = build(host=[1, math.inf], accelerator=[1, math.inf], sizes=[1, 1], arcs=[(0, 1)], costs=[1, 1])
    with pytest.raises(Infeasible, match="node 'node 1' runs on no device"):
        best_latency(problem)


def test_too_little_memory_in_all_is_said() -> None:
    problem = build(
        host=[math.inf] * 4, accelerator=[1] * 4, sizes=[3] * 4, arcs=[(0, 1)], costs=[1] * 4, devices=2, memory=4
    )
    with pytest.raises(Infeasible, match=r"hold 12 bytes, .* 4 bytes are lacking"):
        best_latency(problem)


def test_memory_too_finely_divided_is_said() -> None:
    problem = build(
        host=[math.inf] * 3, accelerator=[1] * 3, sizes=[3] * 3, arcs=[(0, 1)], costs=[1] * 3, devices=2, memory=5
    )
    with pytest.raises(Infeasible, match=r"no single-pass placement was found .* the nodes hold 9 bytes"):
        best_latency(problem)
