"""Small programs of branches, and schedules of them: what bounds and searches for latency are held against."""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import cache
from itertools import permutations, product

import numpy as np

from planner.partition.assignment import Assignment
from planner.partition.problem import PartitionProblem
from planner.partition.program_orders import Bundles
from tests.planner.partition.problems import problem as problem_of


def forks_and_joins(choice: random.Random) -> PartitionProblem:
    """Up to seven nodes: one, then branches that another joins, perhaps twice over; messages as dear as nodes."""
    reads, ends = [[0]] if choice.random() < 0.8 else [[]], [1]
    while len(reads) < 5:
        branches = choice.randint(1, min(3, 6 - len(reads)))
        starts = [choice.choice(ends) for _ in range(branches)]
        reads += [[start] for start in starts]
        ends = list(range(len(reads) - branches + 1, len(reads) + 1))
        if choice.random() < 0.7:
            reads.append(ends)
            ends = [len(reads)]
    num_devices, message = 2 if len(reads) > 6 else choice.choice([2, 3]), choice.choice([0.05, 0.3, 1.0])
    seconds = [choice.choice([0.0, 0.5, 1.0, 2.0]) for _ in reads]
    speeds = [choice.choice([1.0, 1.0, 2.0]) for _ in range(num_devices)]
    return problem_of(
        compute_seconds=[[speed * one for one in seconds] for speed in speeds],
        reads=reads,
        value_bytes=[choice.choice([0, 1, 1, 4]) for _ in range(len(reads) + 1)],
        latency=message,
        per_byte=choice.choice([0.0, message]),
        relay=choice.random() < 0.2,
    )


def schedules(problem: PartitionProblem, choice: random.Random) -> Iterator[Assignment]:
    """Some orders of the nodes, with any choice of devices; each node a stage, or runs of nodes on one device."""
    n = problem.num_nodes
    before = [
        {int(problem.value_producer[value]) for value in problem.read_value[problem.read_node == node]}
        for node in range(n)
    ]
    for _ in range(2):
        order: list[int] = []
        while len(order) < n:
            order.append(choice.choice([k for k in range(n) if k not in order and before[k] <= {-1, *order}]))
        for devices in product(range(problem.num_devices), repeat=n):
            for joined in (False, True):
                stages, on = [0] * n, list[int]()
                for node in order:
                    if not (joined and on and on[-1] == devices[node]):
                        on.append(devices[node])
                    stages[node] = len(on) - 1
                yield Assignment(stage_of_node=tuple(stages), device_of_stage=tuple(on), reasons=())


def fork_over_two_hosts(rng: np.random.Generator) -> PartitionProblem:
    """Five nodes, the first of which leads to all, on four or five devices in two hosts, within which messages are
    cheap."""
    reads = [[0]]
    for node in range(1, 5):
        reads.append([1, *(1 + other for other in range(1, node) if rng.random() < 0.3)])
    if rng.random() < 0.8:
        reads[-1] = [1, *sorted(set(range(2, 5)) - {value for own in reads[1:-1] for value in own[1:]})]
    host = [0, 0, 0, 1, 1] if rng.random() < 0.5 else [0, 0, 0, 1]
    seconds, slow = rng.integers(1, 9, 5).astype(np.float64), float(rng.choice([1.0, 1.25, 2.0]))
    between = np.not_equal.outer(host, host)
    within, apart = float(rng.choice([0.0, 0.1])), float(rng.choice([0.3, 1.0, 4.0]))
    links = np.where(between, apart, within) * (1 - np.eye(len(host)))
    speeds = rng.choice([1.0, slow], len(host)) if rng.random() < 0.5 else np.where(np.array(host) == 0, 1.0, slow)
    return problem_of(
        compute_seconds=np.outer(speeds, seconds).tolist(),
        reads=reads,
        value_bytes=rng.integers(0, 4, 6).tolist(),
        returned=(5,),
        latency=(links if rng.random() < 0.5 else 0 * links).tolist(),
        per_byte=(links / 2).tolist(),
    )


def fork_on_many_devices(rng: np.random.Generator) -> tuple[PartitionProblem, float]:
    """Five or six nodes on four or five devices, and their seconds on the quickest; messages cheap or dear."""
    n, num_devices = int(rng.integers(5, 7)), int(rng.integers(4, 6))
    reads = [[0]]
    for node in range(1, n):
        near = [1 + other for other in range(node) if rng.random() < (0.5 if node - other < 3 else 0.15)]
        reads.append(near or [1 + int(rng.integers(node))])
    if rng.random() < 0.6:
        unread = set(range(1, n)) - {value for own in reads for value in own}
        reads[-1] = sorted({*reads[-1], *unread})
    seconds = rng.integers(1, 9, n).astype(np.float64)
    speeds = [1.0] * num_devices if rng.random() < 0.7 else rng.choice([1.0, 1.3, 2.0], num_devices).tolist()
    problem = problem_of(
        compute_seconds=[(seconds * speed).tolist() for speed in speeds],
        reads=reads,
        value_bytes=rng.integers(0, 4, n + 1).tolist(),
        returned=(n,),
        latency=float(rng.choice([0.0, 0.1, 0.5, 2.0])),
        per_byte=float(rng.choice([0.0, 0.1, 0.7])),
    )
    return problem, float(seconds.sum() * min(speeds))


@cache
def forks_in_a_row(seed: int) -> tuple[PartitionProblem, float]:
    """Two or three forks, of two or three branches each, on devices of two speeds; messages cost nothing. And what a
    lone batch takes at best, each branch beside others of its fork, or before or behind them."""
    rng = np.random.default_rng(seed)
    num_forks, counts = int(rng.integers(2, 4)), [int(count) for count in rng.integers(2, 6, 2)]
    nodes = [float(seconds) for seconds in rng.integers(0, 3, num_forks + 1)]
    forks = [[float(seconds) for seconds in rng.integers(2, 9, rng.integers(2, 4))] for _ in range(num_forks)]
    speeds = 1.0, float(rng.choice([1.25, 2.0]))
    reads, seconds = [[0]], nodes[:1]
    for branches, node in zip(forks, nodes[1:], strict=True):
        first = len(reads)
        reads += [[first]] * len(branches)
        reads.append(list(range(first + 1, len(reads) + 1)))
        seconds += [*branches, node]
    problem = problem_of(
        compute_seconds=[
            [speed * one for one in seconds] for speed, count in zip(speeds, counts, strict=True) for _ in range(count)
        ],
        reads=reads,
        value_bytes=[0] * (len(reads) + 1),
        returned=(len(reads),),
    )

    @cache
    def least(fork: int, outside: float, left: tuple[int, ...]) -> float:
        """From a fork on, `outside` being what its device has to run before it, with so many devices of each speed."""
        if fork == num_forks:
            return min((speed * outside for speed, count in zip(speeds, left, strict=True) if count), default=np.inf)
        branches, node = forks[fork], nodes[fork + 1]
        best = least(fork + 1, outside + sum(branches) + node, left)
        for places in product(("before", "behind", 0, 1, 2), repeat=len(branches)):
            own = [sum(one for one, at in zip(branches, places, strict=True) if at == stage) for stage in range(3)]
            own = [one for one in own if one]
            before, behind = (
                sum(one for one, at in zip(branches, places, strict=True) if at == end) for end in ("before", "behind")
            )
            for kinds in product(range(2), repeat=len(own) + 1):
                rest = tuple(count - kinds.count(one) for one, count in enumerate(left))
                if own and min(rest) >= 0:
                    beside = max(speeds[kind] * one for kind, one in zip(kinds[1:], own, strict=True))
                    taken = speeds[kinds[0]] * (outside + before) + beside
                    best = min(best, taken + least(fork + 1, behind + node, rest))
        return best

    return problem, least(0, nodes[0], tuple(counts))


def stages_in_order(bundles: Bundles, most: int) -> Iterator[tuple[int, ...]]:
    """Each way to give the bundles so many stages at most, none of them empty, that edges follow."""
    for stages in product(range(most), repeat=bundles.count):
        if len(set(stages)) == max(stages) + 1 and all(
            stages[bundle] <= stages[reader] for bundle, readers in enumerate(bundles.after) for reader in readers
        ):
            yield stages


def devices_told_apart(problem: PartitionProblem, count: int) -> Iterator[tuple[int, ...]]:
    """So many distinct devices, each order of their speeds and of the links between them once."""
    told = set()
    for devices in permutations(range(problem.num_devices), count):
        own = list(devices)
        links = problem.link_latency_seconds[own][:, own], problem.link_seconds_per_byte[own][:, own]
        speeds = tuple(problem.compute_seconds[own, 0].tolist()), *(matrix.tobytes() for matrix in links)
        if speeds not in told:
            told.add(speeds)
            yield devices
