"""A lone batch on devices that each serve once: what a block takes in and gives out, and what of it is proven."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from planner.partition.bounds.parted_blocks import PartedBlocks
from planner.partition.bounds.path_blocks import PathBlocks
from planner.partition.bounds.serial_latency import serial_bound
from planner.partition.bounds.sites import sites_of
from planner.partition.evaluate import evaluate
from planner.partition.program_orders import bundles_of
from tests.planner.partition.bounds.forks import fork_over_two_hosts, forks_in_a_row
from tests.planner.partition.problems import problem as problem_of


def test_a_block_receives_what_its_least_chain_brings() -> None:
    """Behind node 1, node 3 stands by itself and node 5 behind node 4, which makes little; node 2 is the path's."""
    problem = problem_of(
        compute_seconds=[[1.0, 1.0, 9.0, 2.0, 1.0, 2.0, 1.0, 1.0]] * 4,
        reads=[[0], [1], [2], [2], [2], [5], [3, 4, 6], [7]],
        value_bytes=[0, 40, 30, 7, 8, 3, 9, 20, 1],
        returned=(8,),
    )
    [every] = PathBlocks(problem, bundles_of(problem)).within_each([4, 8])
    blocks = every.largest()
    assert blocks.beside.tolist() == [5.0]
    assert blocks.within.tolist() == [14.0]
    # Node 1 makes 30 bytes for all, of which node 5 sees the 3 of node 4; nodes 2, 3 and 5 give 7, 8 and 9.
    assert blocks.received.tolist() == [3.0]
    assert blocks.sent.tolist() == [3.0]
    assert blocks.given_before.tolist() == [40.0, 20.0]
    assert blocks.given_within.tolist() == [7.0]
    assert sorted(blocks.bundles[0].tolist()) == [1.0, 2.0, 2.0, 9.0]


def test_what_is_outside_blocks_waits_where_it_goes_to_another_host() -> None:
    problem, _ = forks_in_a_row(np.random.default_rng(4))
    host = np.arange(problem.num_devices) >= problem.num_devices // 2
    over_hosts = replace(problem, link_latency_seconds=8.0 * np.not_equal.outer(host, host))
    bundles = bundles_of(problem)
    # 30.2 where only stages beside one another wait for messages between hosts.
    assert serial_bound(over_hosts, bundles) == pytest.approx(31.8, abs=0.1)


def test_work_with_too_many_sums_is_divided_at_will_over_all_devices_at_most() -> None:
    """Branches of 8 to 15 s and 40 devices: each ends within its own time, and nothing is infinite."""
    branches = [8.0, 9.5, 10.25, 11.125, 12.0625, 13.03125, 14.015625, 15.0]
    problem = problem_of(
        compute_seconds=[[1.0, *branches, 1.0]] * 40,
        reads=[[0], *([1] for _ in branches), list(range(2, len(branches) + 2))],
        value_bytes=[1] * (len(branches) + 3),
        latency=0.25,
        returned=(len(branches) + 2,),
    )
    with np.errstate(all="raise"):
        bound = serial_bound(problem, bundles_of(problem))
    assert bound == pytest.approx(1 + 0.25 + 15 + 0.25 + 1)


def test_the_path_may_stay_on_its_host_where_what_is_beside_it_goes_to_another() -> None:
    """Three devices hold both ends and the path between them, 10 s; beside it one of another host takes 6 s, and two
    messages of 2."""
    host = np.array([0, 0, 0, 1])
    problem = problem_of(
        compute_seconds=[[1.0, 10.0, 6.0, 1.0]] * 4,
        reads=[[0], [1], [1], [2, 3]],
        value_bytes=[1] * 5,
        latency=(2.0 * np.not_equal.outer(host, host)).tolist(),
        returned=(4,),
    )
    bundles = bundles_of(problem)
    plan = bundles.assignment([0, 1, 2, 3], (0, 1, 3, 2))
    # The last stage waits for the path, then receives.
    assert evaluate(problem, plan).latency_seconds == pytest.approx(14.0)
    assert serial_bound(problem, bundles) <= 14.0
    [blocks], sites = PathBlocks(problem, bundles).within_each([4]), sites_of(problem, np.ones(4), 4)
    dear_at_home = PartedBlocks(blocks.largest(), sites).at(np.array([100.0, 0.0]))
    assert dear_at_home.seconds[0].diagonal() == pytest.approx([10.0, 10.0])


def test_no_block_is_parted_for_a_single_device() -> None:
    """That would be in turn with what is before and behind."""
    problem = fork_over_two_hosts(np.random.default_rng(68))
    # 12 if it might be.
    assert serial_bound(problem, bundles_of(problem)) == pytest.approx(13.25, abs=0.01)
