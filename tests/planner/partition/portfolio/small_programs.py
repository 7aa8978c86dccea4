"""Small random programs whose least latency over all stages and devices can be tried out."""

from __future__ import annotations

import random

from planner.partition.problem import PartitionProblem
from tests.planner.partition.problems import problem as problem_of


def small_program(seed: int) -> PartitionProblem:
    """Four or five nodes, two or three devices: equal or not, links with and without latency, memory for all or not."""
    choice = random.Random(seed)
    n, num_devices = choice.randint(4, 5), choice.choice([2, 2, 3])
    density = choice.choice([0.25, 0.45, 0.7])
    reads = [[value for value in range(1, node + 1) if choice.random() < density] for node in range(n)]
    reads = [sorted({0, *read}) if not read or choice.random() < 0.15 else read for read in reads]
    if choice.random() < 0.15:
        reads[choice.randrange(n)] = []
    read_by_some = {value for read in reads for value in read}
    returned = tuple(value for value in range(1, n + 1) if value not in read_by_some or choice.random() < 0.1)
    seconds = [choice.choice([0.5, 1.0, 2.0, 3.0, 5.0]) for _ in range(n)]
    differ = choice.random() < 0.5
    speeds = [choice.choice([0.5, 1.0, 1.5, 2.0]) if differ else 1.0 for _ in range(num_devices)]
    states = [(choice.randint(1, 20), (node,)) for node in range(n) if choice.random() < 0.6]
    sizes = [choice.randint(1, 8) for _ in range(n + 1)]
    everything = sum(size for size, _ in states) + sum(sizes)
    is_tight = choice.random() < 0.4
    room = [int(everything * choice.uniform(0.5, 1.4)) for _ in range(num_devices)]
    latencies, rates = [0.0, 0.1, 0.5], [0.01, 0.1, 0.3]
    if choice.random() < 0.3:
        latency, per_byte = (
            [[choice.choice(some) for _ in range(num_devices)] for _ in range(num_devices)]
            for some in (latencies, rates)
        )
    else:
        latency, per_byte = choice.choice(latencies), choice.choice(rates)
    return problem_of(
        compute_seconds=[[speed * one for one in seconds] for speed in speeds],
        reads=reads,
        value_bytes=sizes,
        returned=returned,
        states=states,
        memory_bytes=room if is_tight else None,
        latency=latency,
        per_byte=per_byte,
        relay=choice.random() < 0.3,
        microbatches_in_flight=1,
    )
