"""Hosts that are left and entered again: the least bottleneck of chains, against a plain programme."""

from functools import partial

import numpy as np
import pytest

from planner.partition.ordered import host_states, many_devices
from planner.partition.ordered.device_walks import by_device
from planner.partition.ordered.hosts import hosts_of
from planner.partition.ordered.many_devices import over_many_devices
from planner.partition.ordered.positions import allowed_positions
from planner.partition.ordered.program_pass import evaluate_layout
from planner.partition.problem import PartitionProblem
from tests.planner.partition.ordered.chains_on_hosts import chain_and_least, least_of_chain, random_chain
from tests.planner.partition.problems import chain
from tests.random_examples import random_seeds


def is_quickest_within(problem: PartitionProblem) -> bool:
    """Whether no host gains by a slower link to itself."""
    hosts = hosts_of(problem)
    return all(
        problem.link_seconds_per_byte[members[0], members[1]] <= problem.link_seconds_per_byte[members[0]].max()
        and problem.link_seconds_per_byte[members[0], members[1]]
        <= np.delete(problem.link_seconds_per_byte[members[0]], members[0]).min()
        for host in range(hosts.count)
        if len(members := np.flatnonzero(hosts.host_of_device == host)) > 1
    )


@pytest.mark.slow
@pytest.mark.fuzz
@pytest.mark.parametrize("known_words", [host_states._MAX_WORDS, 3000])
@pytest.mark.parametrize("seed", random_seeds(60))
def test_a_chain_gets_its_least_bottleneck_and_the_proof(seed: int, known_words: int) -> None:
    """Whether all is known of what the host in use has left, or only how many devices."""
    problem, expected = chain_and_least(seed, max_devices=7)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(many_devices, "MAX_UNITS", 0)
        patch.setattr(many_devices, "_PARTS", ())
        patch.setattr(host_states, "_MAX_WORDS", known_words)
        walks = over_many_devices(problem, allowed_positions(problem))
    assert walks is not None
    assert walks.value <= expected * (1 + 1e-9)
    layouts = [evaluate_layout(problem, *layout) for layout in walks.layouts]
    assert all(layout.fits(problem) for layout in layouts)
    if is_quickest_within(problem) and known_words > 3000:
        assert walks.value == pytest.approx(expected)
        assert min((layout.bottleneck_seconds for layout in layouts), default=np.inf) == pytest.approx(expected)


@pytest.mark.slow
@pytest.mark.parametrize("width", [1, 3])
def test_few_states_give_plans_and_no_false_bound(width: int) -> None:
    for seed in range(40):
        problem, expected = chain_and_least(seed)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(many_devices, "MAX_UNITS", 0)
            patch.setattr(many_devices, "_PARTS", ())
            patch.setattr(many_devices, "least_over_hosts", partial(host_states.least_over_hosts, widths=(width,)))
            walks = over_many_devices(problem, allowed_positions(problem))
        assert walks is not None
        assert walks.value <= expected * (1 + 1e-9)


def test_a_host_is_entered_twice_where_that_is_best() -> None:
    """Some chain's optimum has devices of a host apart; the search tells the hosts apart as single devices would."""
    entered_again = 0
    for seed in range(40):
        problem = random_chain(seed, max_devices=6)
        hosts = hosts_of(problem)
        if not (hosts.count > 1 and is_quickest_within(problem) and by_device(hosts).num_states):
            continue
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(many_devices, "MAX_UNITS", 0)
            patch.setattr(many_devices, "_PARTS", ())
            walks = over_many_devices(problem, allowed_positions(problem))
        assert walks is not None
        for _, devices in walks.layouts:
            visits = hosts.host_of_device[list(devices)]
            entered_again += np.count_nonzero(np.diff(visits)) + 1 > np.unique(visits).size
    assert entered_again


def test_a_value_of_no_bytes_pays_the_latency_of_its_own_link() -> None:
    """Two devices that exchange at once, of the kind of three others that no link reaches in less than a second."""
    host_of_device = np.array([0, 0, 0, 1, 1])
    at_once = (host_of_device[:, None] == 1) & (host_of_device == 1)
    problem = chain(
        [[1.0, 1.0]] * 5,
        value_bytes=[1, 0, 1],
        latency=np.where(at_once, 0.0, 1.0).tolist(),
        per_byte=np.where(host_of_device[:, None] == host_of_device, 0.0, 1.0).tolist(),
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(many_devices, "MAX_UNITS", 0)
        patch.setattr(many_devices, "_PARTS", ())
        walks = over_many_devices(problem, allowed_positions(problem))
    assert walks is not None
    assert walks.value <= least_of_chain(problem) == pytest.approx(1.0)


def test_tables_count_a_row_for_each_link_within_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    host = np.arange(8) // 2
    per_byte = np.where(host[:, None] == host, 0.1 + 0.1 * host, 1.0)
    problem = chain([[1.0] * 8] * 8, per_byte=per_byte.tolist())
    hosts = hosts_of(problem)
    # Up to 8 devices used; of each of four hosts, 0 to 2 left; four links within hosts and one between.
    num_words = (8 + 1) * (4 * 3 + 4 + 1)
    monkeypatch.setattr(host_states, "_MAX_WORDS", num_words)
    assert host_states.can_be_searched(hosts, problem.num_nodes + 1)
    monkeypatch.setattr(host_states, "_MAX_WORDS", num_words - 1)
    assert not host_states.can_be_searched(hosts, problem.num_nodes + 1)
