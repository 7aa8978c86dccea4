"""The bound on a training step with the pipeline filled and drained, against every assignment of small programs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from planner.partition.assignment import contiguous
from planner.partition.bounds import step_time
from planner.partition.bounds.step_time import fill_bound
from planner.partition.bounds.work import largest_bundle_bound, work_bound
from planner.partition.evaluate import evaluate
from planner.partition.objective import NAMED_SCHEDULES, Objective, PipelineSchedule, Training
from planner.partition.problem import PartitionProblem
from planner.partition.program_orders import bundles_of
from tests.planner.partition.exact import all_contiguous, every_assignment, least
from tests.planner.partition.problems import chain
from tests.random_examples import random_seeds


def trained(seconds: list[list[float]], training: Training, **more: object) -> PartitionProblem:
    """Gradients come back for what nodes make."""
    problem = chain(seconds, training=training, **more)
    made = np.arange(problem.num_values) >= problem.num_values - problem.num_nodes
    return replace(
        problem,
        node_has_gradient=np.ones(problem.num_nodes, dtype=np.bool_),
        value_gradient_bytes=np.where(made, problem.value_bytes, 0),
    )


def bound_of(problem: PartitionProblem, num_stages: int = 0) -> float:
    bundles = bundles_of(problem)
    return fill_bound(problem, bundles, max(work_bound(problem), largest_bundle_bound(problem, bundles)), num_stages)


@pytest.mark.slow
@pytest.mark.fuzz
@pytest.mark.parametrize("seed", random_seeds(40))
def test_it_is_never_above_the_optimum(seed: int) -> None:
    """Chains and programs with skips and branches; equal devices and several kinds."""
    rng = np.random.default_rng(seed)
    devices, nodes = int(rng.integers(1, 4)), int(rng.integers(2, 6))
    speeds = rng.choice([1.0, 1.5, 3.0], devices) if seed % 2 else np.ones(devices)
    own = rng.uniform(0.5, 2.0, nodes)
    training = Training(
        schedule=(*NAMED_SCHEDULES, PipelineSchedule.BEST)[seed % 6],
        microbatches=int(rng.integers(1, 13)),
        backward_ratio=float(rng.choice([1.0, 2.0])),
    )
    more = {"reads": [[0], *(drawn_reads(rng, node) for node in range(1, nodes))]} if seed % 3 == 0 else {}
    links = {"latency": float(rng.choice([0, 0.5]))}
    if seed % 7 < 3:
        links = {name: rng.uniform(0, 2, (devices, devices)).tolist() for name in ("latency", "per_byte")}
        more["value_bytes"] = rng.integers(0, 3, nodes + 1).tolist()
    problem = trained([list(own * speed) for speed in speeds], training, **links, **more)
    if seed % 4 == 3:
        problem = replace(
            problem,
            node_backward_ratio=rng.uniform(0.5, 4.0, (devices, nodes)),
            node_split_ratio=rng.uniform(0.5, 4.0, (devices, nodes)),
        )
    stages = int(rng.integers(1, devices + 1)) if seed % 5 == 0 and nodes >= devices else 0
    every = [one for one in every_assignment(problem) if stages in (0, one.num_stages)]
    assert bound_of(problem, stages) <= least(problem, Objective.STEP_TIME, every) * (1 + 1e-9)


def test_of_so_many_stages_some_may_stand_beside_the_path() -> None:
    """Node 1 alone reads what node 0 makes beside the path: of three stages two hold the path."""
    training = Training(schedule=PipelineSchedule.GPIPE, microbatches=2, backward_ratio=1.0)
    problem = trained([[1.25, 1.0, 0.75, 0.75]] * 3, training, reads=[[0], [1], [1], [3]])
    three = [one for one in every_assignment(problem) if one.num_stages == 3]
    assert bound_of(problem, 3) <= least(problem, Objective.STEP_TIME, three)


def diamonds(schedule: PipelineSchedule, microbatches: int, speeds: list[float]) -> PartitionProblem:
    """Two in a row: nodes 1 and 2 read node 0, node 3 both of them, and so on. Beside the path stand 2 and 5."""
    training = Training(schedule=schedule, microbatches=microbatches, backward_ratio=2.0)
    seconds = np.array([1.0, 1.0, 0.8, 1.0, 1.0, 0.8, 1.0])
    reads = [[0], [1], [1], [2, 3], [4], [4], [5, 6]]
    return trained([list(seconds * speed) for speed in speeds], training, reads=reads)


def test_a_stage_beside_the_path_is_within_a_segment() -> None:
    """Beside that of the best of all contiguous plans; which has stages side by side in a diamond or none."""
    problem = diamonds(PipelineSchedule.ONE_F_ONE_B, 8, [1.0, 1.0, 1.0])
    best = least(problem, Objective.STEP_TIME, all_contiguous(problem))
    assert 0.89 * best <= bound_of(problem) <= best * (1 + 1e-9)


@pytest.mark.fuzz
@pytest.mark.parametrize("seed", random_seeds(12))
def test_programs_of_segments_are_never_above_the_optimum(seed: int) -> None:
    """Of two or three nodes side by side between two that all others wait for."""
    rng = np.random.default_rng(seed)
    reads, end = [[0]], 1
    while len(reads) < 4:
        width = int(rng.integers(2, 4))
        reads += [[end] for _ in range(width)]
        reads.append(list(range(end + 1, end + 1 + width)))
        end += width + 1
    devices = int(rng.integers(2, 4))
    own, speeds = rng.uniform(0.2, 2.0, len(reads)), rng.choice([1.0, 2.0], devices)
    training = Training(
        schedule=(PipelineSchedule.ONE_F_ONE_B, PipelineSchedule.GPIPE, PipelineSchedule.BEST)[seed % 3],
        microbatches=int(rng.integers(1, 10)),
        backward_ratio=float(rng.choice([0.5, 1.0, 2.0])),
    )
    problem = trained([list(own * speed) for speed in speeds], training, reads=reads)
    assert bound_of(problem) <= least(problem, Objective.STEP_TIME, every_assignment(problem)) * (1 + 1e-9)


@pytest.mark.parametrize("microbatches", [4, 8])
def test_stages_as_many_as_microbatches_fill_for_half_of_the_step(microbatches: int) -> None:
    """Where each stage runs all forward passes before the first comes back, the longer pass still runs one by one."""
    problem = trained([[1.0] * 16] * 8, Training(microbatches=microbatches))
    even = contiguous(problem, range(0, 17, 2), range(8))
    step = evaluate(problem, even).step_seconds
    assert step == (microbatches + 7) * 6
    assert 0.92 * step <= bound_of(problem, 8) <= step * (1 + 1e-9)


def test_stages_that_do_less_at_the_end_are_never_below_it() -> None:
    """With four microbatches they make a step 6 % shorter than equal stages do."""
    problem = trained([[1.0] * 96] * 8, Training(microbatches=4))
    sizes = [14, 14, 13, 14, 14, 9, 9, 9]
    step = evaluate(problem, contiguous(problem, np.cumsum([0, *sizes]).tolist(), range(8))).step_seconds
    assert step == 372
    assert 0.98 * step <= bound_of(problem) <= step


@pytest.mark.parametrize("microbatches", [2, 4, 8])
def test_a_microbatch_that_waits_for_a_slow_device_is_proven(microbatches: int) -> None:
    """Five times as slow: two of three stages are better, by a tenth where there are four microbatches."""
    training = Training(schedule=PipelineSchedule.GPIPE, microbatches=microbatches)
    problem = trained([[1.0] * 12, [1.0] * 12, [5.0] * 12], training)
    best = least(problem, Objective.STEP_TIME, all_contiguous(problem))
    assert best * (1 - 1e-6) <= bound_of(problem) <= best * (1 + 1e-9)


@pytest.mark.parametrize("schedule", [PipelineSchedule.GPIPE, PipelineSchedule.ONE_F_ONE_B])
def test_a_microbatch_takes_the_links_of_a_least_spanning_tree(schedule: PipelineSchedule) -> None:
    """A quick one and a slow one, whichever devices stand one after the other."""
    training = Training(schedule=schedule, microbatches=2)
    slow = 2.0
    problem = trained([[1.0] * 12] * 3, training, per_byte=[[0, slow, slow], [slow, 0, 0.1], [slow, 0.1, 0]])
    best = least(problem, Objective.STEP_TIME, all_contiguous(problem, 3))
    assert 0.92 * best <= bound_of(problem, 3) <= best * (1 + 1e-9)


def test_cuts_may_be_where_the_path_has_least_to_send() -> None:
    """Every other value is nine times as large."""
    training = Training(microbatches=2)
    problem = trained([[1.0] * 12] * 3, training, value_bytes=[1] + [9, 1] * 6, per_byte=2.0)
    best = least(problem, Objective.STEP_TIME, all_contiguous(problem, 3))
    assert 0.88 * best <= bound_of(problem, 3) <= best * (1 + 1e-9)


def test_kinds_that_are_too_many_count_as_quicker_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """The slower of the two that are nearest: four devices of speeds 1, 0.5, 0.45 and 0.25 as 1, 0.5, 0.5 and 0.25."""
    training = Training(microbatches=8)
    slow = trained([[1.0] * 12, [2.0] * 12, [2 / 0.9] * 12, [4.0] * 12], training)
    merged = trained([[1.0] * 12, [2.0] * 12, [2.0] * 12, [4.0] * 12], training)
    exact, of_merged = bound_of(slow), bound_of(merged)
    assert of_merged < exact
    monkeypatch.setattr(step_time, "_MAX_STATES", 12)
    bundles = bundles_of(slow)
    assert fill_bound(slow, bundles, 0.0) == pytest.approx(fill_bound(merged, bundles, 0.0))


def drawn_reads(rng: np.random.Generator, node: int) -> list[int]:
    """Of an earlier value, and of the last one more often than not."""
    return sorted({int(rng.integers(1, node + 1)), *([node] if rng.random() < 0.6 else [])})


@pytest.mark.parametrize("schedule", [PipelineSchedule.GPIPE, PipelineSchedule.ONE_F_ONE_B])
@pytest.mark.parametrize("microbatches", [8, 16])
def test_equal_stages_of_an_even_chain_are_proven(schedule: PipelineSchedule, microbatches: int) -> None:
    """Twelve equal nodes on four devices: (m + S - 1) times a stage, where the work alone says m."""
    problem = trained([[1.0] * 12] * 4, Training(schedule=schedule, microbatches=microbatches))
    even = next(one for one in all_contiguous(problem, 4) if np.bincount(one.stage_of_node).tolist() == [3] * 4)
    step = evaluate(problem, even).step_seconds
    assert step == (microbatches + 3) * 9
    assert bound_of(problem, 4) == pytest.approx(step, rel=1e-6)


def test_work_beside_the_path_needs_no_place_before_it() -> None:
    """Two branches that a device each may run: nothing fills before either."""
    training = Training(schedule=PipelineSchedule.ONE_F_ONE_B, microbatches=8)
    apart = trained([[1.0, 1.0]] * 2, training, reads=[[0], [0]])
    in_turn = trained([[1.0, 1.0]] * 2, training)
    assert bound_of(apart) <= 8 * 3 * (1 + 1e-9)
    assert bound_of(in_turn) > 8 * 3 * 1.05


def test_frozen_nodes_send_nothing_back() -> None:
    problem = trained([[1.0] * 4] * 2, Training(microbatches=4))
    frozen = replace(
        problem,
        node_has_gradient=np.array([False, False, True, True]),
        value_gradient_bytes=np.where(np.arange(problem.num_values) >= 3, problem.value_gradient_bytes, 0),
    )
    best = least(frozen, Objective.STEP_TIME, every_assignment(frozen))
    assert bound_of(frozen) <= best * (1 + 1e-9)


def test_one_device_has_all_the_work() -> None:
    problem = trained([[1.0, 2.0]], Training(microbatches=3))
    assert bound_of(problem) == pytest.approx(3 * 9, rel=1e-6)
