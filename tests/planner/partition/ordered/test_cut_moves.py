"""Cuts and devices moved for the shortest step: seconds are evaluate's, and of small programs it is the least."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from planner.partition.assignment import contiguous
from planner.partition.evaluate import evaluate
from planner.partition.modes.optimal import CONTIGUOUS, optimal
from planner.partition.objective import NAMED_SCHEDULES, Objective, PipelineSchedule, Training
from planner.partition.ordered import cut_moves_kernel as kernel
from planner.partition.ordered.cut_moves import layout_of, line_of, scratch_of, with_cuts_moved
from planner.partition.ordered.positions import allowed_positions
from planner.partition.out_of_time import never
from planner.partition.portfolio.moved_cuts import offer_moved_cuts
from planner.partition.problem import PartitionProblem
from planner.partition.request import Request
from planner.partition.score import score
from planner.partition.turns_kernel import passes_of
from tests.planner.partition.exact import all_contiguous, fits, least, value_of
from tests.planner.partition.problems import chain, problem
from tests.random_examples import random_seeds

STEP = Objective.STEP_TIME


def drawn(seed: int, num_nodes: int, num_devices: int, **more: object) -> PartitionProblem:
    """A chain, of whose nodes each third also reads what the one two before it made; unlike devices and links."""
    draw = np.random.default_rng(seed)
    speeds = draw.choice([1.0, 1.5, 4.0], num_devices)
    host = draw.integers(0, 2, num_devices)
    sizes = draw.integers(1, 20, num_nodes + 1).tolist()
    schedule = NAMED_SCHEDULES[seed % len(NAMED_SCHEDULES)]
    arguments: dict[str, object] = {
        "reads": [[k, k - 2] if k % 3 == 2 else [k] for k in range(num_nodes)],
        "value_bytes": sizes,
        "returned": (num_nodes,),
        "latency": np.where(host[:, None] == host, 0.01, 0.1).tolist(),
        "per_byte": np.where(host[:, None] == host, 0.005, 0.05).tolist(),
        "relay": bool(seed // len(NAMED_SCHEDULES) % 2),
        "training": Training(schedule=schedule, microbatches=int(draw.integers(1, 6))),
        **more,
    }
    return problem(compute_seconds=np.outer(speeds, draw.integers(1, 6, num_nodes).astype(float)).tolist(), **arguments)


def modelled_seconds(problem: PartitionProblem, boundaries: tuple[int, ...], devices: tuple[int, ...]) -> float:
    """After a look at whether any limit cuts them off."""
    positions = allowed_positions(problem)
    line = line_of(problem, positions)
    layout = layout_of(problem, np.searchsorted(positions, boundaries), np.array(devices))
    scratch = scratch_of(problem.num_devices, positions.size)
    passes = passes_of(problem.num_devices, line.turns.microbatches)
    seconds = kernel.step_seconds(line, layout, scratch, passes, np.inf)
    if np.isfinite(seconds):
        assert kernel.step_seconds(line, layout, scratch, passes, seconds * (1 + 1e-9)) == seconds
    return float(seconds)


@pytest.mark.fuzz
@pytest.mark.parametrize("seed", random_seeds(40))
def test_a_steps_seconds_are_those_of_evaluate(seed: int) -> None:
    one, draw = drawn(seed, 9, 4), np.random.default_rng(seed)
    for num_stages in range(1, 5):
        cuts = np.sort(draw.choice(np.arange(1, 9), num_stages - 1, replace=False))
        devices = tuple(draw.permutation(4)[:num_stages].tolist())
        boundaries = (0, *cuts.tolist(), 9)
        expected = evaluate(one, contiguous(one, boundaries, devices)).step_seconds
        assert modelled_seconds(one, boundaries, devices) == pytest.approx(expected, rel=1e-12)


def test_gradients_that_no_one_waits_for_hold_up_nothing() -> None:
    """Of what the first stage makes only the second node's output is trained, and nothing reads that."""
    one = chain(
        [[1.0, 4.0, 2.0, 2.0]] * 2,
        reads=[[0], [1], [1], [3]],
        value_bytes=[1] * 5,
        returned=(4,),
        frozen=(0,),
        training=Training(microbatches=3),
    )
    expected = evaluate(one, contiguous(one, (0, 2, 4), (0, 1))).step_seconds
    assert modelled_seconds(one, (0, 2, 4), (0, 1)) == pytest.approx(expected, rel=1e-12)


def test_values_that_are_read_far_behind_are_sent_from_where_they_are_made() -> None:
    """Over the link between the two hosts, while all that neighbours exchange stays on one."""
    one = chain(
        [[1.0] * 6] * 3,
        reads=[[0], [1], [2], [3], [4], [5, 1]],
        value_bytes=[1, 50, 1, 1, 1, 1, 1],
        per_byte=[[0, 0.01, 1.0], [0.01, 0, 0.01], [1.0, 0.01, 0]],
        training=Training(microbatches=3),
    )
    expected = evaluate(one, contiguous(one, (0, 2, 4, 6), (0, 1, 2))).step_seconds
    assert modelled_seconds(one, (0, 2, 4, 6), (0, 1, 2)) == pytest.approx(expected, rel=1e-12)


@pytest.mark.fuzz
@pytest.mark.parametrize("seed", random_seeds(10))
def test_small_steps_are_the_shortest_of_all(seed: int) -> None:
    """Started from all on one device."""
    one = drawn(seed, 6, 3)
    expected = least(one, STEP, all_contiguous(one))
    moved = with_cuts_moved(one, np.array([0, 6]), np.array([0]), keeps_count=False, effort=0.2, out_of_time=never)
    boundaries, devices = (tuple(each.tolist()) for each in moved)
    assert value_of(one, contiguous(one, boundaries, devices), STEP) == pytest.approx(expected, rel=1e-9)


# From where these begin each way to the shortest leads through steps that do not fit.
APART = (1795862815000004, 1795862815000018, 78000013, 79000033)


@pytest.mark.fuzz
@pytest.mark.parametrize("seed", [*random_seeds(6), *APART])
def test_what_does_not_fit_is_never_the_answer(seed: int) -> None:
    """All states and activations on few devices would be quicker."""
    ample = drawn(seed, 6, 3, states=[(10, (node,)) for node in range(6)])
    needs = [evaluate(ample, assignment).device_peak_bytes for assignment in all_contiguous(ample, 3)]
    one = replace(ample, device_memory_bytes=np.full(3, min(max(peaks) for peaks in needs)))
    start = next(assignment for assignment in all_contiguous(one) if fits(one, assignment))
    boundaries = np.concatenate([[0], np.flatnonzero(np.diff(start.stage_of_node)) + 1, [6]])
    moved = with_cuts_moved(
        one, boundaries, np.array(start.device_of_stage), keeps_count=False, effort=0.2, out_of_time=never
    )
    assignment = contiguous(one, *(tuple(each.tolist()) for each in moved))
    assert fits(one, assignment)
    assert value_of(one, assignment, STEP) == pytest.approx(least(one, STEP, all_contiguous(one)))


def test_the_number_of_stages_is_kept_where_it_is_given() -> None:
    one = drawn(1, 9, 4)
    for num_stages in (2, 4):
        boundaries, devices = with_cuts_moved(
            one,
            np.array([*range(num_stages), 9]),
            np.arange(num_stages),
            keeps_count=True,
            effort=0.2,
            out_of_time=never,
        )
        assert devices.size == num_stages == boundaries.size - 1 == len(set(devices.tolist()))
        plan = optimal(one, Request(mode="optimal", objective=STEP, num_stages=num_stages, effort=0.1))
        assert plan.num_stages == num_stages


def test_a_start_that_does_not_fit_comes_back() -> None:
    one = drawn(2, 6, 2, states=[(100, (0, 5))], memory_bytes=[1, 1])
    boundaries, devices = with_cuts_moved(
        one, np.array([0, 3, 6]), np.array([1, 0]), keeps_count=False, effort=1.0, out_of_time=never
    )
    assert boundaries.tolist() == [0, 3, 6]
    assert devices.tolist() == [1, 0]


def test_the_last_stages_do_least_where_microbatches_are_few() -> None:
    """Of 96 equal nodes on eight equal devices, four microbatches: equal stages make a step of 11 / 8 of all work."""
    one = chain([[1.0] * 96] * 8, training=Training(schedule=PipelineSchedule.ONE_F_ONE_B, microbatches=4))
    plan = optimal(one, Request(mode="optimal", objective=STEP, effort=0.1))
    sizes = np.bincount(plan.stage_of_node)
    assert sizes[-1] < 12 < sizes[0]
    assert score(one, plan, STEP).value < 0.96 * 3 * 96 * 11 / 8


def test_no_other_search_of_a_step_comes_as_far(monkeypatch: pytest.MonkeyPatch) -> None:
    one, request = drawn(1, 96, 8), Request(mode="optimal", objective=STEP, effort=0.1)
    plan = optimal(one, request)
    others = tuple(search for search in CONTIGUOUS if search.run is not offer_moved_cuts)
    assert len(others) == len(CONTIGUOUS) - 1
    monkeypatch.setattr("planner.partition.modes.optimal.CONTIGUOUS", others)
    assert score(one, plan, STEP).value < 0.98 * score(one, optimal(one, request), STEP).value


def test_a_clock_that_is_over_leaves_all_as_it_is() -> None:
    one = drawn(3, 9, 4)
    boundaries, devices = with_cuts_moved(
        one, np.array([0, 2, 9]), np.array([3, 1]), keeps_count=False, effort=1.0, out_of_time=lambda: True
    )
    assert boundaries.tolist() == [0, 2, 9]
    assert devices.tolist() == [3, 1]
