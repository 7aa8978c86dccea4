"""Random problems that are built around their optimum, so that what it is needs no search; each for one bound, which is
to say just that. A bound that is a few percent too high claims on one of these what no plan reaches."""

from __future__ import annotations

import numpy as np

from planner.partition.problem import PartitionProblem
from tests.planner.partition.problems import chain, problem

SLOWNESS = (1.0, 1.0, 2.0, 4.0)


def _parts(rng: np.random.Generator, total: float, count: int) -> list[float]:
    """Positive, and `total` in sum."""
    shares = rng.uniform(0.2, 1.0, count)
    return (shares * (total / shares.sum())).tolist()


def work_that_can_be_shared_evenly(rng: np.random.Generator, *, equal: bool) -> tuple[PartitionProblem, float]:
    """Nodes that read nothing; those meant for one device take `seconds` on it."""
    devices, seconds = int(rng.integers(1, 4)), float(rng.integers(1, 9))
    slowness = np.ones(devices) if equal else rng.choice(SLOWNESS, devices)
    work = [part / slow for slow in slowness for part in _parts(rng, seconds, int(rng.integers(1, 3)))]
    instance = problem(
        compute_seconds=np.outer(slowness, rng.permutation(work)).tolist(),
        reads=[[] for _ in work],
        value_bytes=[0] * len(work),
        num_inputs=0,
    )
    return instance, seconds


def one_large_group(rng: np.random.Generator) -> tuple[PartitionProblem, float]:
    """Its nodes take 10 s together on the quickest device, everything else 1 s."""
    devices, size = int(rng.integers(2, 4)), int(rng.integers(2, 4))
    work = [*_parts(rng, 10.0, size), 0.5, 0.5]
    slowness = [1.0, *rng.choice(SLOWNESS, devices - 1)]
    instance = problem(
        compute_seconds=np.outer(rng.permutation(slowness), work).tolist(),
        reads=[[] for _ in work],
        value_bytes=[0] * len(work),
        num_inputs=0,
        groups=[(0, size - 1)],
    )
    instance.node_group[:size] = 0
    return instance, 10.0


def a_path_over_devices(rng: np.random.Generator) -> tuple[PartitionProblem, float]:
    """Each device is the quickest for the nodes of one stretch of a chain, and sending costs nothing."""
    devices = int(rng.integers(1, 4))
    owners = np.repeat(rng.permutation(devices), rng.integers(1, 3, devices))
    seconds = rng.integers(1, 9, owners.size).astype(np.float64)
    table = np.where(owners == np.arange(devices)[:, None], seconds, 3 * seconds)
    return chain(table.tolist()), float(seconds.sum())


def branches_too_dear_to_part(rng: np.random.Generator) -> tuple[PartitionProblem, float]:
    """Between a first node and a last one; a message takes longer than all work."""
    branches = int(rng.integers(2, 5))
    seconds = rng.integers(1, 9, branches + 2).astype(np.float64)
    instance = problem(
        compute_seconds=[seconds.tolist()] * int(rng.integers(1, 4)),
        reads=[[0], *([1] for _ in range(branches)), list(range(2, branches + 2))],
        value_bytes=[1] * (branches + 3),
        latency=float(seconds.sum()),
    )
    return instance, float(seconds.sum())


def branches_on_devices_of_their_own(rng: np.random.Generator) -> tuple[PartitionProblem, float]:
    """Between a first node and a last one: equal branches, each on a device, and a message before and behind them."""
    branches, branch = int(rng.integers(2, 5)), float(rng.integers(4, 9))
    seconds = [float(rng.integers(1, 9)), *[branch] * branches, float(rng.integers(1, 9))]
    message = float(rng.choice([0.0, 0.25, 1.0]))
    instance = problem(
        compute_seconds=[seconds] * (branches + 2),
        reads=[[0], *([1] for _ in range(branches)), list(range(2, branches + 2))],
        value_bytes=[0] * (branches + 3),
        latency=message,
        returned=(branches + 2,),
    )
    return instance, seconds[0] + branch + seconds[-1] + 2 * message


def states_that_can_be_spread_evenly(rng: np.random.Generator) -> tuple[PartitionProblem, float]:
    """Those meant for one device fill the same share of it; one that no node uses is nowhere."""
    devices, share = int(rng.integers(1, 4)), int(rng.integers(1, 9))
    rooms = rng.integers(1, 5, devices) * 1000
    sizes = []
    for room in rooms.tolist():
        filled = room * share // 10
        part = int(rng.integers(1, filled))
        sizes += [part, filled - part]
    sizes = rng.permutation(sizes).tolist()
    instance = problem(
        compute_seconds=[[1.0] * len(sizes)] * devices,
        reads=[[] for _ in sizes],
        value_bytes=[0] * len(sizes),
        num_inputs=0,
        states=[*((size, (node,)) for node, size in enumerate(sizes)), (5000, ())],
        memory_bytes=rooms.tolist(),
    )
    return instance, share / 10


def one_large_state(rng: np.random.Generator) -> tuple[PartitionProblem, float]:
    """Half of the largest device; any other holds the rest with ease."""
    rooms = rng.permutation([1000, *rng.integers(100, 400, int(rng.integers(1, 3)))])
    instance = chain(
        [[1.0] * 2] * rooms.size, states=[(500, (0,)), (10, (1,))], memory_bytes=rooms.tolist(), value_bytes=[0] * 3
    )
    return instance, 0.5


def a_chain_that_pays_for_each_cut(rng: np.random.Generator) -> tuple[PartitionProblem, float]:
    """Equal devices and equal values: those at the ends send or receive, those between do both, all as long."""
    devices = int(rng.integers(2, 5))
    sending = float(rng.integers(1, 4))
    seconds = float(rng.integers(8, 20))
    work = [seconds - sending * (1 if place in (0, devices - 1) else 2) for place in range(devices)]
    nodes = [part for share in work for part in _parts(rng, share, int(rng.integers(1, 4)))]
    cost = {"latency": sending} if rng.random() < 0.5 else {"per_byte": sending / 16}
    instance = chain([nodes] * devices, value_bytes=[16] * (len(nodes) + 1), **cost)
    return instance, seconds


def a_chain_over_two_hosts(rng: np.random.Generator) -> tuple[PartitionProblem, float]:
    """Of two devices each, all equal. Between the hosts a value takes longer, for the last of the one and the first of
    the other."""
    within, between = float(rng.integers(1, 3)), float(rng.integers(3, 6))
    seconds = float(rng.integers(14, 24))
    work = [seconds - within, seconds - within - between, seconds - within - between, seconds - within]
    nodes = [part for share in work for part in _parts(rng, share, int(rng.integers(1, 4)))]
    per_byte = np.kron(np.ones((2, 2)), np.full((2, 2), between / 16))
    per_byte[:2, :2] = per_byte[2:, 2:] = within / 16
    np.fill_diagonal(per_byte, 0.0)
    return chain([nodes] * 4, value_bytes=[16] * (len(nodes) + 1), per_byte=per_byte.tolist()), seconds


def a_chain_over_links_of_one_way(rng: np.random.Generator) -> tuple[PartitionProblem, float]:
    """Two devices, of which the second sends ten times as slowly as the first: the first begins."""
    sending, seconds = float(rng.integers(1, 4)), float(rng.integers(8, 20))
    nodes = [part for _ in range(2) for part in _parts(rng, seconds - sending, int(rng.integers(1, 4)))]
    there, back = sending / 16, 10 * sending / 16
    instance = chain(
        [nodes] * 2, value_bytes=[0, *[16] * len(nodes)], returned=(), per_byte=[[0.0, there], [back, 0.0]]
    )
    return instance, seconds
