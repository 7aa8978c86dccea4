"""Random chains on random clusters, and their least bottleneck by a plain programme over every set of used devices."""

from __future__ import annotations

import random
from functools import cache, partial

import numpy as np

from planner.partition.assignment import contiguous
from planner.partition.evaluate import evaluate
from planner.partition.problem import PartitionProblem
from tests.planner.partition.problems import chain


@cache
def chain_and_least(seed: int, *, max_devices: int = 6) -> tuple[PartitionProblem, float]:
    """Once for all tests of a process that ask for it."""
    problem = random_chain(seed, max_devices=max_devices)
    return problem, least_of_chain(problem)


def random_chain(seed: int, *, max_nodes: int = 9, max_devices: int = 6) -> PartitionProblem:
    """Hosts of a few kinds of devices; links within and between hosts, or of any cost; memory that may bind."""
    draw = random.Random(seed)
    n, devices = draw.randint(2, max_nodes), draw.randint(2, max_devices)
    kinds = [(draw.choice([0.5, 1.0, 1.5, 3.0]), draw.uniform(0.9, 1.6)) for _ in range(draw.randint(1, 3))]
    kind_of_device = [draw.randrange(len(kinds)) for _ in range(devices)]
    size = draw.randint(1, devices)
    host_of_device = [device // size for device in range(devices)]
    near, far = draw.choice([(0.01, 0.3), (0.05, 0.05), (0.3, 0.02)])
    any_links = draw.random() < 0.2

    def link(source: int, target: int) -> float:
        if any_links:
            return draw.choice([0.01, 0.1, 0.3])
        return near if host_of_device[source] == host_of_device[target] else far

    per_byte = [[link(source, target) for target in range(devices)] for source in range(devices)]
    sizes = [draw.randint(20, 60) for _ in range(n)]
    room = sum(sizes) / devices
    bound = draw.random() < 0.5
    return chain(
        [[kinds[kind][0] * seconds for seconds in _seconds(seed, n)] for kind in kind_of_device],
        value_bytes=[draw.randint(1, 8) for _ in range(n + 1)],
        states=[(size, (node,)) for node, size in enumerate(sizes)],
        memory_bytes=[int(room * kinds[kind][1]) + 60 for kind in kind_of_device] if bound else None,
        per_byte=per_byte,
        latency=[[link_seconds / 2 for link_seconds in row] for row in per_byte],
        relay=draw.random() < 0.2,
    )


def _seconds(seed: int, n: int) -> list[float]:
    draw = random.Random(seed + 1)
    return [draw.choice([1.0, 2.0, 3.5, 5.0]) for _ in range(n)]


def needed_bytes(problem: PartitionProblem, start: int, end: int) -> int:
    """Of the stage with these nodes, on whatever device."""
    n = problem.num_nodes
    inner = [position for position in (start, end) if 0 < position < n]
    # On one device: bytes are of stages.
    evaluation = evaluate(problem, contiguous(problem, (0, *inner, n), [0] * (len(inner) + 1), [""] * (len(inner) + 1)))
    return evaluation.stages[1 if start else 0].peak_bytes


def least_of_chain(problem: PartitionProblem) -> float:
    """Infinite where nothing fits. Exponential in the devices."""
    n, devices = problem.num_nodes, range(problem.num_devices)

    needed = cache(partial(needed_bytes, problem))

    def sent(position: int, source: int, target: int) -> float:
        return problem.transfer_seconds(source, target, int(problem.value_bytes[position]))

    @cache
    def least(start: int, used: int, own: int, given: float) -> float:
        """Of what the stage on `own` that begins here, and those behind it, take."""
        best = np.inf
        for end in range(start + 1, n + 1):
            if needed(start, end) > problem.device_memory_bytes[own]:
                continue
            took = given + float(problem.compute_seconds[own, start:end].sum())
            if end == n:
                best = min(best, took)
                continue
            for after in devices:
                if used >> after & 1 or end == n:
                    continue
                over = sent(end, own, after)
                if took + over < best:
                    best = min(best, max(took + over, least(end, used | 1 << after, after, over)))
        return best

    return min(least(0, 1 << own, own, 0.0) for own in devices)
