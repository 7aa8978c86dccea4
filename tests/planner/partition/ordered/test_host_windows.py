"""Windows on hosts: of plans that enter each host once the best, for programs whose values skip stages too."""

import random
from itertools import groupby

import numpy as np
import pytest

from planner.partition.assignment import Assignment
from planner.partition.objective import Objective, Training
from planner.partition.ordered.host_windows import over_windows
from planner.partition.ordered.program_pass import evaluate_layout
from planner.partition.problem import PartitionProblem
from tests.planner.partition.exact import all_contiguous, fits, least
from tests.planner.partition.problems import problem
from tests.random_examples import random_seeds


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
    held = [draw.randint(5, 30) for _ in range(n)]
    room = sum(held) // len(host) + 40
    reads = [sorted(draw.sample(range(node + 1), min(node + 1, draw.randint(1, 3)))) for node in range(n)]
    program = problem(
        compute_seconds=[[speed * took for took in seconds] for speed in speeds],
        reads=reads,
        value_bytes=[draw.choice([1, 4, 12]) for _ in range(n + 1)],
        returned=(n, draw.randint(1, n)),
        states=[(size, (node,)) for node, size in enumerate(held)],
        memory_bytes=[room] * len(host) if draw.random() < 0.5 else None,
        per_byte=per_byte,
        latency=[[cost / 10 for cost in row] for row in per_byte],
        training=Training(microbatches=2, backward_ratio=1.0) if draw.random() < 0.2 else None,
    )
    return program, host


def enters_once(plan: Assignment, host: list[int]) -> bool:
    visits = [own for own, _ in groupby(host[device] for device in plan.device_of_stage)]
    return len(visits) == len(set(visits))


@pytest.mark.fuzz
@pytest.mark.parametrize("seed", random_seeds(40))
def test_no_plan_that_enters_each_host_once_is_better(seed: int) -> None:
    program, host = random_program(seed)
    every = [plan for plan in all_contiguous(program) if fits(program, plan)]
    layouts = over_windows(program)
    for layout in layouts:
        found = evaluate_layout(program, *layout)
        assert (np.array(found.device_peak_bytes) <= program.device_memory_bytes).all()
    if program.training is not None or len(set(host)) == len(host):
        return
    once = least(program, Objective.THROUGHPUT, [plan for plan in every if enters_once(plan, host)])
    if np.isfinite(once):
        assert evaluate_layout(program, *layouts[-1]).bottleneck_seconds <= once * (1 + 1e-3)


def test_a_value_that_skips_stages_keeps_them_on_one_host() -> None:
    """Two hosts of two; the first node's value is read at the end: what reads it stands beside what made it."""
    host = [0, 0, 1, 1]
    program = problem(
        compute_seconds=[[2.0, 2.0, 2.0]] * 4,
        reads=[[0], [1], [2, 1]],
        value_bytes=[1, 8, 1, 1],
        per_byte=[[0.01 if one == other else 1.0 for other in host] for one in host],
    )
    boundaries, devices = over_windows(program)[-1]
    assert len(boundaries) == 3
    assert len({host[device] for device in devices}) == 1
