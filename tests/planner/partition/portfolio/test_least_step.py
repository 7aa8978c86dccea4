"""The bound on a training step over every chain of order ideals, against every assignment of small programs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from planner.partition.assignment import contiguous
from planner.partition.evaluate import evaluate
from planner.partition.modes.optimal import optimal
from planner.partition.objective import (
    NAMED_SCHEDULES,
    UNSPLIT_SCHEDULES,
    Activations,
    Objective,
    PipelineSchedule,
    Training,
)
from planner.partition.portfolio import least_step as bound
from planner.partition.portfolio.least_step import least_step
from planner.partition.problem import PartitionProblem
from planner.partition.program_orders import bundles_of
from planner.partition.request import Request
from tests.planner.partition.bounds.test_step_time import drawn_reads, trained
from tests.planner.partition.exact import all_contiguous, every_assignment, least
from tests.random_examples import random_seeds

ONE_F_ONE_B, GPIPE, ZERO_BUBBLE = PipelineSchedule.ONE_F_ONE_B, PipelineSchedule.GPIPE, PipelineSchedule.ZERO_BUBBLE
# Ideals, all or a few; and none, so that there are groups of them.
MOST_IDEALS = [1500, 6, 0]


def bound_of(problem: PartitionProblem, best: float) -> float:
    """Between a hundredth and twice of it."""
    return least_step(problem, bundles_of(problem), least=best / 100, limit=2 * best)


@pytest.mark.slow
@pytest.mark.fuzz
@pytest.mark.parametrize("most_ideals", MOST_IDEALS)
@pytest.mark.parametrize("seed", random_seeds(30))
def test_it_is_never_above_the_optimum(seed: int, most_ideals: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Chains and programs with branches, on equal devices and several kinds, over equal links and others."""
    monkeypatch.setattr(bound, "MAX_IDEALS", most_ideals)
    if seed % 2:
        monkeypatch.setattr(bound, "MAX_STATES", (1, 2, 10_000))
    rng = np.random.default_rng(seed)
    devices, nodes = int(rng.integers(1, 4)), int(rng.integers(2, 7))
    speeds = rng.choice([1.0, 1.5, 3.0], devices) if seed % 2 else np.ones(devices)
    own = rng.uniform(0.5, 2.0, nodes)
    schedules = (ONE_F_ONE_B, GPIPE, *NAMED_SCHEDULES, PipelineSchedule.BEST)
    training = Training(
        schedule=schedules[int(rng.integers(0, len(schedules)))],
        microbatches=int(rng.integers(1, 13)),
        backward_ratio=float(rng.choice([1.0, 2.0])),
    )
    if seed % 9 == 4 and training.schedule in UNSPLIT_SCHEDULES:
        training = replace(training, activations=Activations.RECOMPUTED)
    more = {"reads": [[0], *(drawn_reads(rng, node) for node in range(1, nodes))]} if seed % 3 else {}
    links = {"latency": float(rng.choice([0, 0.5]))}
    if seed % 7 < 3:
        links = {name: rng.uniform(0, 2, (devices, devices)).tolist() for name in ("latency", "per_byte")}
        more["value_bytes"] = rng.integers(0, 3, nodes + 1).tolist()
    problem = trained([list(own * speed) for speed in speeds], training, **links, **more)
    if seed % 5 == 3:
        ratios = {name: rng.uniform(0.5, 4.0, (devices, nodes)) for name in ("node_backward_ratio", "node_split_ratio")}
        problem = replace(problem, **ratios)
    if seed % 4 == 1:
        some = problem.value_gradient_bytes * rng.integers(0, 2, problem.num_values)
        problem = replace(problem, value_gradient_bytes=some, relay=seed % 8 == 1)
    best = least(problem, Objective.STEP_TIME, every_assignment(problem))
    assert bound_of(problem, best) <= best * (1 + 1e-9)


@pytest.mark.parametrize("most_ideals", MOST_IDEALS)
@pytest.mark.parametrize("schedule", [ONE_F_ONE_B, GPIPE, ZERO_BUBBLE])
def test_a_stage_beside_the_path_holds_up_what_joins_both_alone(
    schedule: PipelineSchedule, most_ideals: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nodes 1 and 2 read node 0, and node 3 node 2: a stage with nodes 2 and 3 does not wait for node 1."""
    monkeypatch.setattr(bound, "MAX_IDEALS", most_ideals)
    training = Training(schedule=schedule, microbatches=5, backward_ratio=1.0)
    problem = trained([[1.95, 1.84, 1.3, 1.5]] * 3, training, latency=0.5, reads=[[0], [1], [1], [3]])
    best = least(problem, Objective.STEP_TIME, every_assignment(problem))
    assert 0.7 * best <= bound_of(problem, best) <= best * (1 + 1e-9)


def test_what_joins_a_path_waits_for_what_is_beside_it() -> None:
    """The path is 0, 1, 3; node 2 fits a slow device alone, where it takes longer than node 1 does, and node 3, the
    busiest stage, begins behind it."""
    training = Training(schedule=GPIPE, microbatches=8, backward_ratio=1.0)
    seconds = np.array([1.0, 2.0, 1.5, 4.0])
    devices = [*[seconds.tolist()] * 3, (2 * seconds).tolist()]
    memory = {"states": ((1000, (2,)),), "memory_bytes": [500, 500, 500, 5000]}
    problem = trained(devices, training, reads=[[0], [1], [1], [2, 3]], **memory)
    best = least(problem, Objective.STEP_TIME, every_assignment(problem))
    assert best == 2 * (1 + 3 + 8 * 4)
    assert bound_of(problem, best) == pytest.approx(best, rel=bound._ENOUGH)


def test_gradients_come_back_over_the_link_from_the_stage_behind() -> None:
    """There in 0.1 s and back in 2, or the other way round, as a stage has no memory for both nodes."""
    training = Training(schedule=GPIPE, microbatches=1, backward_ratio=1.0)
    states, links = ((100, (0,)), (100, (1,))), [[0.0, 0.1], [2.0, 0.0]]
    problem = trained([[1.0, 1.0]] * 2, training, states=states, latency=links, memory_bytes=[500, 500])
    best = least(problem, Objective.STEP_TIME, all_contiguous(problem))
    # Before the update, devices agree on the gradients' norm, which is not counted.
    assert best == pytest.approx(4.0 + 2.1 + 2.1)
    assert bound_of(problem, best) == pytest.approx(4.0 + 2.1, rel=bound._ENOUGH)


@pytest.mark.parametrize("schedule", [GPIPE, ONE_F_ONE_B])
@pytest.mark.parametrize("speeds", [[1.0] * 3, [1.0, 1.0, 2.0], [1.0, 1.5, 4.0]])
def test_a_chain_of_large_nodes_is_proven(speeds: list[float], schedule: PipelineSchedule) -> None:
    """Work divided at will, which arithmetic knows, is 10 to 20 % less. The devices of each kind are so many."""
    training = Training(schedule=schedule, microbatches=8)
    problem = trained([list(np.array([3.0, 2.0, 4.0, 3.0, 5.0]) * speed) for speed in speeds], training)
    best = least(problem, Objective.STEP_TIME, all_contiguous(problem))
    enough = 1.0 if schedule is GPIPE else 0.96
    assert enough * best * (1 - bound._ENOUGH) <= bound_of(problem, best) <= best * (1 + 1e-9)


def test_an_even_chain_is_proven_to_be_optimal() -> None:
    problem = trained([[1.0] * 12] * 4, Training(schedule=GPIPE, microbatches=8))
    plan = optimal(problem, Request(mode="optimal", objective=Objective.STEP_TIME))
    even = evaluate(problem, contiguous(problem, range(0, 13, 3), range(4))).step_seconds
    assert evaluate(problem, plan).step_seconds == plan.lower_bound_seconds == even


def test_nodes_that_no_device_has_memory_for_are_apart() -> None:
    """A state, its gradient and the optimizer's part are 300 bytes; on one device both are quicker where they fit."""
    training = Training(schedule=GPIPE, microbatches=4)
    problem = trained([[1.0, 1.0]] * 2, training, states=((100, (0,)), (100, (1,))), latency=3.0)
    alone, apart = (least(problem, Objective.STEP_TIME, all_contiguous(problem, stages)) for stages in (1, 2))
    assert alone < apart
    assert bound_of(problem, alone) == pytest.approx(alone, rel=bound._ENOUGH)
    small = replace(problem, device_memory_bytes=np.full(2, 500))
    assert alone * 1.5 < bound_of(small, apart) <= apart


def test_slow_devices_that_are_not_counted_make_it_no_stronger(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a count of the slow ones there are as many as one likes, so the bound is lower, and holds."""
    training = Training(schedule=GPIPE, microbatches=16)
    problem = trained([[2.0] * 7] * 2 + [[3.0] * 7] * 2, training)
    best = least(problem, Objective.STEP_TIME, all_contiguous(problem))
    counted = bound_of(problem, best)
    monkeypatch.setattr(bound, "MAX_STATES", (3,))
    free = bound_of(problem, best)
    assert best * 0.5 < free < counted <= best * (1 + 1e-9)


@pytest.mark.parametrize("above", [1.01, 1.03, 1.08])
def test_what_is_known_of_a_short_step_says_nothing_of_a_longer_one(
    above: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With few kinds counted, steps shorter than the least are tried first: a microbatch takes longer through these."""
    monkeypatch.setattr(bound, "MAX_STATES", (2, 4, 6))
    training = Training(schedule=GPIPE, microbatches=2)
    own = np.array([0.898, 1.058, 1.224, 0.457])
    reads = [[0], [1], [1], [3]]
    problem = trained([list(own * speed) for speed in (2.0, 2.0, 1.5)], training, latency=0.3, reads=reads)
    best = least(problem, Objective.STEP_TIME, every_assignment(problem))
    assert least_step(problem, bundles_of(problem), least=best / 100, limit=best * above) <= best * (1 + 1e-9)


def test_stages_on_more_kinds_of_devices_than_memory_is_for_are_not_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """There are 78 stages of twelve nodes, each on four kinds of devices."""
    problem = trained([[speed] * 12 for speed in (1.0, 1.5, 2.0, 3.0)], Training(schedule=GPIPE, microbatches=8))
    monkeypatch.setattr(bound, "MAX_GROUP_LOADS", 4 * 78)
    assert least_step(problem, bundles_of(problem), least=1.0, limit=1000.0) > 1.0
    monkeypatch.setattr(bound, "MAX_GROUP_LOADS", 4 * 78 - 1)
    assert least_step(problem, bundles_of(problem), least=1.0, limit=1000.0) == 1.0
