"""Random programs on two or three hosts, whose values skip stages."""

from __future__ import annotations

import random

from planner.partition.objective import Training
from planner.partition.problem import PartitionProblem
from tests.planner.partition.problems import problem


def random_program(seed: int) -> tuple[PartitionProblem, list[int]]:
    """Also the host of each device. Values are read by any later nodes."""
    draw = random.Random(seed)
    n, sizes = draw.randint(2, 5), [draw.randint(1, 2), 2]
    host = [index for index, size in enumerate(sizes) for _ in range(size)]
    near, far = draw.choice([(0.01, 0.3), (0.1, 0.15), (0.02, 0.5)])
    per_byte = [[near if one == other else far for other in host] for one in host]
    kinds = [draw.choice([1.0, 2.0]) for _ in range(2)]
    speeds = [draw.choice(kinds) for _ in host]
    seconds = [draw.choice([1.0, 2.0, 3.5]) for _ in range(n)]
    state_sizes = [draw.randint(5, 30) for _ in range(n)]
    room = sum(state_sizes) // len(host) + 40
    reads = [sorted(draw.sample(range(node + 1), min(node + 1, draw.randint(1, 3)))) for node in range(n)]
    program = problem(
        compute_seconds=[[speed * took for took in seconds] for speed in speeds],
        reads=reads,
        value_bytes=[draw.choice([1, 4, 12]) for _ in range(n + 1)],
        returned=(n, draw.randint(1, n)),
        states=[(size, (node,)) for node, size in enumerate(state_sizes)],
        memory_bytes=[room] * len(host) if draw.random() < 0.5 else None,
        per_byte=per_byte,
        latency=[[cost / 10 for cost in row] for row in per_byte],
        training=Training(microbatches=2, backward_ratio=1.0) if draw.random() < 0.2 else None,
    )
    return program, host


def random_mirrored_program(seed: int) -> tuple[PartitionProblem, list[int]]:
    """On three hosts. Beside its neighbour's small value a node of the second half reads a large one of the first."""
    draw = random.Random(seed)
    n, host = draw.randint(5, 7), [0, 0, 1, 1, 2]
    near, far = draw.choice([(0.01, 0.2), (0.02, 0.1)])
    per_byte = [[near if one == other else far for other in host] for one in host]
    speeds, seconds = [draw.choice([1.0, 1.5]) for _ in range(3)], [draw.choice([1.0, 1.5, 2.0]) for _ in range(n)]
    reads = [[node] for node in range(n)]
    sizes = [1] * (n + 1)
    for node in range(n // 2):
        reader = min(n - 1, n - 1 - node + draw.choice([-1, 0, 0, 1, 1]))
        if reader > node + 1:
            reads[reader] = sorted({*reads[reader], node + 1})
            sizes[node + 1] = draw.choice([2, 5, 10])
    program = problem(
        compute_seconds=[[speeds[index] * took for took in seconds] for index in host],
        reads=reads,
        value_bytes=sizes,
        per_byte=per_byte,
    )
    return program, host
