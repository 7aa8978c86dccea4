"""A lone batch through hosts that are each left for good, beside trying everything and in mode optimal."""

from __future__ import annotations

import random
from functools import cache, partial

import numpy as np
import pytest

from planner.partition.assignment import contiguous
from planner.partition.evaluate import evaluate
from planner.partition.modes.optimal import optimal
from planner.partition.objective import Objective
from planner.partition.ordered.hosts import hosts_of
from planner.partition.ordered.positions import allowed_positions
from planner.partition.ordered.program_pass import OrderedPass, host_by_host_pass
from planner.partition.ordered.segment_loads import SegmentLoads, StageLinks
from planner.partition.ordered.segments import Segments
from planner.partition.problem import PartitionProblem
from planner.partition.request import Request
from planner.partition.score import score
from tests.nightly import nightly
from tests.planner.partition.ordered.chains_on_hosts import needed_bytes, random_chain
from tests.planner.partition.problems import chain, problem

MANY = 1_000_000
NUM_CHAINS = 120
SPEEDS = (1.0, 1.6, 2.5, 4.0)


def least_latency(problem: PartitionProblem) -> float:
    """Of stages of a chain, each on a device of its own, that enter each host once. Infinite where nothing fits;
    exponential in the devices."""
    n, host = problem.num_nodes, hosts_of(problem).host_of_device

    needed = cache(partial(needed_bytes, problem))

    @cache
    def least(start: int, used: int, own: int) -> float:
        """Of the stage on `own` that begins here, and those behind it."""
        best = np.inf
        for end in range(start + 1, n + 1):
            if needed(start, end) > problem.device_memory_bytes[own]:
                continue
            took = float(problem.compute_seconds[own, start:end].sum())
            if end == n:
                best = min(best, took)
                continue
            for after in range(problem.num_devices):
                enters_again = host[after] != host[own] and any(
                    used >> other & 1 and host[other] == host[after] for other in range(problem.num_devices)
                )
                if not (used >> after & 1 or enters_again):
                    sent = problem.transfer_seconds(own, after, int(problem.value_bytes[end]))
                    best = min(best, took + sent + least(end, used | 1 << after, after))
        return best

    return min(least(0, 1 << own, own) for own in range(problem.num_devices))


def test_no_stages_that_enter_each_host_once_are_quicker() -> None:
    num_compared = 0
    for seed in range(NUM_CHAINS):
        problem = random_chain(seed, max_nodes=7, max_devices=5)
        shared = host_by_host_pass(problem, 0, MANY)
        if shared is None or not problem.value_bytes.all():
            continue
        least = least_latency(problem)
        assert passed_soonest(shared) == pytest.approx(least, rel=1e-9), seed
        num_compared += np.isfinite(least)
    assert num_compared > NUM_CHAINS / 4


def passed_soonest(shared: OrderedPass) -> float:
    """As its plan is evaluated; infinite without one."""
    solution = shared.search(allowed_positions(shared.problem), objective=Objective.LATENCY)
    if not solution.boundaries:
        return np.inf
    plan = contiguous(shared.problem, solution.boundaries, shared.devices_of(solution.steps))
    return evaluate(shared.problem, plan).latency_seconds


def chain_on_hosts_of_halves(seed: int) -> PartitionProblem:
    """30 nodes onto three hosts of four quick and four slow devices, whose memory makes most of them needed."""
    draw = random.Random(seed)
    host = np.arange(24) // 8
    speeds = np.array([draw.choice(SPEEDS) for _ in range(6)])[np.arange(24) // 4]
    work, sizes = np.array([draw.choice((1, 2, 3)) for _ in range(30)]), [draw.randint(5, 40) for _ in range(30)]
    share = np.sqrt(speeds)
    per_byte = np.where(host[:, None] == host, 0.02, 0.5)
    return chain(
        (work / speeds[:, None]).tolist(),
        value_bytes=[draw.randint(1, 3) for _ in range(31)],
        states=[(size, (node,)) for node, size in enumerate(sizes)],
        memory_bytes=(share / share.sum() * sum(sizes) * draw.uniform(1.5, 2.5) + 20).astype(int).tolist(),
        per_byte=per_byte.tolist(),
        latency=(per_byte / 10).tolist(),
    )


@pytest.mark.parametrize("seed", [4, *nightly([6, 8])])
def test_optimal_is_no_slower_than_going_from_host_to_host(seed: int) -> None:
    problem = chain_on_hosts_of_halves(seed)
    shared = host_by_host_pass(problem, 0, MANY)
    assert shared is not None
    plan = optimal(problem, Request(mode="optimal", objective=Objective.LATENCY))
    assert score(problem, plan, Objective.LATENCY).value <= passed_soonest(shared) * (1 + 1e-9)


def test_hosts_of_too_many_states_and_a_single_host_are_left_out() -> None:
    assert host_by_host_pass(chain_on_hosts_of_halves(0), 0, 10) is None
    assert host_by_host_pass(chain([[1.0] * 3] * 4), 0, MANY) is None


def test_what_skips_stages_counts_as_if_it_came_with_the_rest() -> None:
    """Of two values, one made earlier: both over the link from the stage just before, not over the best there is."""
    links = [[0.0, 0.5, 0.5], [0.5, 0.0, 0.5], [0.5, 0.125, 0.0]]
    case = problem(compute_seconds=[[1.0] * 3] * 3, reads=[[0], [1], [1, 2]], value_bytes=[1, 4, 8, 1], per_byte=links)
    loads = SegmentLoads(case, [StageLinks(own=1, into=(0, 1), out=None, kept_microbatches=0)])
    [[seconds]] = loads.path_seconds(Segments(case).row(2, 3), np.array([3]))
    assert seconds == 1.0 + 0.5 * (4 + 8)
