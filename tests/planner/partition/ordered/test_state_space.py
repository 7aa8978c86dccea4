"""The states of walks, spelled out: every way to take devices is a way through them, and knows its links."""

from itertools import pairwise, permutations

import numpy as np
import pytest

from planner.partition.ordered.device_walks import DeviceWalks, by_device, by_kind, host_by_host, in_orders
from planner.partition.ordered.hosts import hosts_of
from planner.partition.ordered.state_space import StateSpace, state_space
from planner.partition.problem import PartitionProblem
from tests.planner.partition.problems import chain

SPEEDS = [1.0, 2.0, 1.0, 1.0]


def on_one_host() -> PartitionProblem:
    return chain([[speed] * 4 for speed in SPEEDS], per_byte=0.5)


def on_two_hosts() -> PartitionProblem:
    """Devices 0 to 2, of which 1 is slower, and device 3."""
    far = [[0.5 if (one == 3) != (other == 3) else 0.1 for other in range(4)] for one in range(4)]
    return chain([[speed] * 4 for speed in SPEEDS], per_byte=far)


def spelled_out(walks: DeviceWalks, num_stages: int = 0) -> StateSpace:
    return state_space(walks, num_stages=num_stages, max_stages=4, kept_microbatches=lambda stage: 10 - stage)


def ways_through(space: StateSpace) -> list[tuple[int, ...]]:
    """Steps from a start to an end."""
    ways, partial = [], [(int(start), ()) for start in space.starts]
    while partial:
        state, steps = partial.pop()
        if state in space.final:
            ways.append(steps)
        partial += [
            (int(space.target[step]), (*steps, step))
            for step in range(space.source.size)
            if space.source[step] == state
        ]
    return ways


def devices_of(walks: DeviceWalks, space: StateSpace, steps: tuple[int, ...]) -> tuple[int, ...]:
    devices = walks.devices_of([(int(space.unit[step]), int(space.node[step])) for step in steps])
    assert devices is not None
    return devices


def alike(problem: PartitionProblem, devices: tuple[int, ...]) -> tuple[tuple[int, int], ...]:
    hosts = hosts_of(problem)
    return tuple((int(hosts.host_of_device[one]), int(hosts.kind_of_device[one])) for one in devices)


@pytest.mark.parametrize("num_stages", [0, 1, 3])
@pytest.mark.parametrize("problem", [on_one_host(), on_two_hosts()], ids=["one host", "two hosts"])
def test_every_way_to_take_devices_is_there_once(problem: PartitionProblem, num_stages: int) -> None:
    hosts = hosts_of(problem)
    walks = by_kind(problem, hosts) if hosts.count == 1 else by_device(hosts)
    space = spelled_out(walks, num_stages)
    ways = [devices_of(walks, space, steps) for steps in ways_through(space)]
    counts = [num_stages] if num_stages else range(1, 5)
    every = {alike(problem, one) for count in counts for one in permutations(range(4), count)}
    assert sorted(alike(problem, way) for way in ways) == sorted(every)
    assert all(len(set(way)) == len(way) for way in ways)


@pytest.mark.parametrize("orders", [None, [(3, 0, 1, 2), (2, 3, 1)]], ids=["by device", "in orders"])
def test_a_stage_knows_the_links_on_both_sides_and_its_place(orders: list[tuple[int, ...]] | None) -> None:
    problem = on_two_hosts()
    walks = by_device(hosts_of(problem)) if orders is None else in_orders(hosts_of(problem), orders)
    space = spelled_out(walks)
    for steps in ways_through(space):
        devices, stages = devices_of(walks, space, steps), [space.labels[space.label[step]] for step in steps]
        assert [stage.kept_microbatches for stage in stages] == [10 - place for place in range(len(stages))]
        assert stages[-1].out is None
        for (one, before), (other, after) in pairwise(zip(devices, stages, strict=True)):
            assert before.out is not None
            assert after.into is not None
            assert {problem.link_seconds_per_byte[link] for link in (before.out, after.into)} == {
                problem.link_seconds_per_byte[one, other]
            }


@pytest.mark.parametrize("problem", [on_one_host(), on_two_hosts()], ids=["one host", "two hosts"])
def test_orders_are_taken_from_their_first_device_on(problem: PartitionProblem) -> None:
    orders = [(3, 0, 1, 2), (2, 3, 1)]
    walks = in_orders(hosts_of(problem), orders)
    space = spelled_out(walks)
    ways = [devices_of(walks, space, steps) for steps in ways_through(space)]
    assert sorted(ways) == sorted(order[:count] for order in orders for count in range(1, len(order) + 1))


def test_what_is_used_in_several_numbers_of_stages_is_one_state_where_nobody_counts_them() -> None:
    """A host may be left before all its devices are taken."""
    near = np.where(np.arange(6)[:, None] // 2 == np.arange(6) // 2, 0.1, 0.5).tolist()
    problem = chain([[1.0 + (device // 2) / 4] * 6 for device in range(6)], per_byte=near)
    walks = host_by_host(hosts_of(problem))
    assert walks is not None
    counted, merged = (
        state_space(walks, num_stages=0, max_stages=6, kept_microbatches=kept)
        for kept in (lambda stage: stage, lambda _: 0)
    )
    assert merged.num_states < counted.num_states
    assert merged.source.size < counted.source.size
    ways = [sorted(devices_of(walks, space, steps) for steps in ways_through(space)) for space in (counted, merged)]
    assert ways[0] == ways[1]
    assert (merged.depth[merged.target] > merged.depth[merged.source]).all()
