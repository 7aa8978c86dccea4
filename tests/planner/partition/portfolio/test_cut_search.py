"""The local search judges a layout once, whichever of several alike devices it is on; and stages are joined."""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.partition.assignment import Assignment, contiguous
from planner.partition.objective import Objective
from planner.partition.ordered.hosts import hosts_of
from planner.partition.portfolio import cut_search
from planner.partition.portfolio.cut_search import climb, fewest_stages
from planner.partition.portfolio.portfolio import Portfolio
from planner.partition.problem import PartitionProblem
from planner.partition.program_orders import bundles_of
from planner.partition.request import Request
from planner.partition.score import Scored, score
from tests.planner.partition.exact import all_contiguous
from tests.planner.partition.problems import chain, problem, problems, trainings
from tests.random_examples import random_examples

TWO_KINDS = problem(
    compute_seconds=[[1.0] * 12] * 3 + [[2.0] * 12] * 2,
    reads=[[node] for node in range(12)],
    value_bytes=[1] * 13,
    latency=0.01,
)


@random_examples(25)
@given(
    drawn=problems(max_nodes=5, max_devices=4, equal_links=True, training=st.none() | trainings),
    objective=st.sampled_from([Objective.THROUGHPUT, Objective.LATENCY, Objective.MEMORY]),
    copied=st.integers(0, 3),
)
def test_devices_that_are_alike_can_change_places(drawn: PartitionProblem, objective: Objective, copied: int) -> None:
    device_of = np.arange(drawn.num_devices)
    # One device more of the kind of another.
    device_of[-1] = min(copied, drawn.num_devices - 1)
    drawn = replace(
        drawn,
        compute_seconds=drawn.compute_seconds[device_of],
        device_memory_bytes=drawn.device_memory_bytes[device_of],
    )
    alike = hosts_of(drawn).alike
    assert set(alike[drawn.num_devices - 1]) >= {device_of[-1], drawn.num_devices - 1}
    for one, other in itertools.combinations(range(drawn.num_devices), 2):
        if other not in alike[one]:
            continue
        changed = {one: other, other: one}
        for assignment in itertools.islice(all_contiguous(drawn), 60):
            devices = tuple(changed.get(device, device) for device in assignment.device_of_stage)
            before = score(drawn, assignment, objective)
            after = score(drawn, replace(assignment, device_of_stage=devices), objective)
            assert (after.value, after.fits) == (pytest.approx(before.value, rel=1e-12), before.fits)


def test_a_layout_is_judged_once(monkeypatch: pytest.MonkeyPatch) -> None:
    judged: list[tuple[tuple[int, ...], tuple[int, ...]]] = []

    def recorded(problem: PartitionProblem, assignment: Assignment, objective: Objective, *, saturate: bool) -> Scored:
        judged.append((assignment.stage_of_node, assignment.device_of_stage))
        return score(problem, assignment, objective, saturate=saturate)

    monkeypatch.setattr(cut_search, "score", recorded)
    portfolio = Portfolio(TWO_KINDS, Request(mode="optimal", objective=Objective.LATENCY, num_stages=5))
    start = Assignment(stage_of_node=(0,) * 8 + (1, 2, 3, 4), device_of_stage=(3, 2, 4, 0, 1))
    best = climb(portfolio, score(TWO_KINDS, start, Objective.LATENCY))
    assert best.value < score(TWO_KINDS, start, Objective.LATENCY).value
    kind = ["fast"] * 3 + ["slow"] * 2
    shapes = Counter((stages, tuple(kind[device] for device in devices)) for stages, devices in judged)
    # As a neighbour, and as where the search starts again.
    assert max(shapes.values()) <= 2
    assert len(shapes) > 20


def test_small_stages_are_joined_until_none_can_be() -> None:
    """Four small nodes on a device each take no longer on one, and the large one sets the value."""
    program = chain([[1.0, 1.0, 1.0, 1.0, 8.0]] * 5)
    apart = score(program, contiguous(program, range(6), range(5)), Objective.THROUGHPUT)
    joined = fewest_stages(program, bundles_of(program), apart, Objective.THROUGHPUT)
    assert joined.value == apart.value == 8.0
    assert joined.assignment.stage_of_node == (0, 0, 0, 0, 1)
