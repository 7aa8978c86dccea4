"""Steps with several stages on each device: seconds are evaluate's, of small programs the least, bounds below all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations, pairwise, permutations

import numpy as np
import pytest

from planner.errors import Infeasible
from planner.partition.assignment import Assignment, contiguous
from planner.partition.evaluate import evaluate
from planner.partition.modes.optimal import optimal
from planner.partition.objective import V_SCHEDULES, Objective, PipelineSchedule, Training
from planner.partition.ordered import cut_moves_kernel as kernel
from planner.partition.ordered.cut_moves import layout_of, line_of, scratch_of, standing
from planner.partition.ordered.positions import allowed_positions
from planner.partition.portfolio.several_stages import moved, spread, there_and_back
from planner.partition.problem import PartitionProblem
from planner.partition.registry import partition
from planner.partition.request import Request
from planner.partition.score import score
from planner.partition.turns_kernel import passes_of
from tests.planner.partition.exact import every_assignment, fits, least, value_of
from tests.planner.partition.ordered.test_cut_moves import drawn
from tests.planner.partition.problems import chain
from tests.random_examples import random_seeds

STEP = Objective.STEP_TIME
REQUEST = Request(mode="optimal", objective=STEP)
# Where any plan will do, or one that searches find at once.
BRIEFLY = replace(REQUEST, effort=0.1)
TWICE = (0, 1, 0, 1)
WAYS = [
    (PipelineSchedule.INTERLEAVED, TWICE),
    (PipelineSchedule.INTERLEAVED, (0, 1, 0, 1, 0, 1)),
    (PipelineSchedule.INTERLEAVED, (0, 1, 2, 0, 1, 2)),
    (PipelineSchedule.ZERO_BUBBLE, (0, 1, 2, 0, 1, 2)),
    *((schedule, there_and_back(num_devices)) for schedule in V_SCHEDULES for num_devices in (1, 2, 3)),
]


def under(one: PartitionProblem, schedule: PipelineSchedule, microbatches: int = 4) -> PartitionProblem:
    return replace(one, training=Training(schedule=schedule, microbatches=microbatches))


def in_line(one: PartitionProblem, place: Sequence[int], cuts: Sequence[int], devices: Sequence[int]) -> Assignment:
    return contiguous(one, (0, *cuts, one.num_nodes), [devices[each] for each in place])


@pytest.mark.fuzz
@pytest.mark.parametrize("seed", random_seeds(4))
@pytest.mark.parametrize(("schedule", "place"), WAYS)
def test_a_steps_seconds_are_those_of_evaluate(schedule: PipelineSchedule, place: tuple[int, ...], seed: int) -> None:
    draw = np.random.default_rng(seed)
    one = under(drawn(seed, 9, 4), schedule, int(draw.integers(1, 7)))
    cuts = np.sort(draw.choice(np.arange(1, 9), len(place) - 1, replace=False)).tolist()
    devices = draw.permutation(4)[: max(place) + 1]
    positions = allowed_positions(one)
    line = line_of(one, positions, standing(schedule, one.training.microbatches, place))  # type: ignore[union-attr]
    layout = layout_of(one, np.searchsorted(positions, (0, *cuts, 9)), devices)
    scratch, passes = scratch_of(9, positions.size), passes_of(9, line.turns.microbatches)
    seconds = kernel.step_seconds(line, layout, scratch, passes, np.inf)
    expected = evaluate(one, in_line(one, place, cuts, devices.tolist())).step_seconds
    assert seconds == pytest.approx(expected, rel=1e-12)
    assert kernel.step_seconds(line, layout, scratch, passes, seconds * (1 + 1e-9)) == seconds


@pytest.mark.fuzz
@pytest.mark.parametrize("seed", random_seeds(2))
@pytest.mark.parametrize(
    ("schedule", "place"),
    [(PipelineSchedule.INTERLEAVED, TWICE), (PipelineSchedule.ZERO_BUBBLE_V, there_and_back(2))],
)
def test_small_steps_are_the_shortest_of_all(schedule: PipelineSchedule, place: tuple[int, ...], seed: int) -> None:
    one = under(drawn(seed, 7, 3), schedule)
    expected = min(
        value_of(one, in_line(one, place, cuts, devices), STEP)
        for cuts in combinations(range(1, 7), len(place) - 1)
        for devices in permutations(range(3), 2)
    )
    start = spread(one, [0, 1], place)
    assert value_of(one, moved(one, REQUEST, start, place, schedule), STEP) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("schedule", [PipelineSchedule.INTERLEAVED, PipelineSchedule.BEST])
def test_a_pipeline_that_fills_in_part_of_the_time_is_over_sooner(schedule: PipelineSchedule) -> None:
    """48 equal nodes on four equal devices, four microbatches: of all work 7 / 4 with a stage on each, and 5.5 / 4 with
    two of half the size."""
    one = chain([[1.0] * 48] * 4, training=Training(schedule=schedule, microbatches=4))
    plan = optimal(one, BRIEFLY)
    assert plan.num_stages > 4
    assert score(one, plan, STEP).value <= 3 * 48 * 5.5 / 4


def test_room_is_for_the_stages_of_a_device_together() -> None:
    """Devices with room for a quarter of the states, and of what is kept for as much as one stage each needs."""
    states = [(10, (node,)) for node in range(16)]
    ample = chain(
        [[1.0] * 16] * 4,
        states=states,
        value_bytes=[3] * 17,
        training=Training(schedule=PipelineSchedule.INTERLEAVED, microbatches=6),
    )
    single = evaluate(ample, contiguous(ample, (0, 4, 8, 12, 16), (0, 1, 2, 3)))
    tight = replace(ample, device_memory_bytes=np.full(4, max(single.device_peak_bytes)))
    plan = optimal(tight, BRIEFLY)
    assert fits(tight, plan)
    assert value_of(tight, plan, STEP) >= value_of(tight, optimal(ample, BRIEFLY), STEP)


def test_a_quick_device_takes_no_more_than_its_stages_fit_with_together() -> None:
    """It has room for half of all states, and would be given most of them."""
    one = chain(
        [[1.0] * 16, [4.0] * 16],
        states=[(10, (node,)) for node in range(16)],
        training=Training(schedule=PipelineSchedule.INTERLEAVED, microbatches=4),
    )
    even = in_line(one, TWICE, (4, 8, 12), (0, 1))
    tight = replace(one, device_memory_bytes=np.array(evaluate(one, even).device_peak_bytes))
    assert fits(tight, moved(tight, BRIEFLY, even, TWICE, PipelineSchedule.INTERLEAVED))
    assert not fits(tight, moved(one, BRIEFLY, even, TWICE, PipelineSchedule.INTERLEAVED))


@pytest.mark.fuzz
@pytest.mark.parametrize("seed", random_seeds(4))
@pytest.mark.parametrize("schedule", [PipelineSchedule.INTERLEAVED, PipelineSchedule.BEST])
def test_no_bound_is_above_what_several_stages_on_a_device_come_to(schedule: PipelineSchedule, seed: int) -> None:
    one = under(drawn(seed, 4, 2), schedule, 3)
    plan = optimal(one, BRIEFLY)
    expected = least(one, STEP, every_assignment(one, free=True))
    assert plan.lower_bound_seconds is not None
    assert plan.lower_bound_seconds <= expected * (1 + 1e-9)


@pytest.mark.parametrize("num_stages", [3, 6, 8, 12])
def test_more_stages_than_devices_may_be_asked_for(num_stages: int) -> None:
    speeds = [3.0, 1.0, 1.0, 1.0]
    one = chain(
        [[speed] * 24 for speed in speeds], training=Training(schedule=PipelineSchedule.INTERLEAVED, microbatches=4)
    )
    plan = optimal(one, replace(BRIEFLY, num_stages=num_stages))
    assert plan.num_stages == num_stages
    if num_stages == 6:
        assert set(plan.device_of_stage) == {1, 2, 3}, "the quick ones"
        unmoved = optimal(one, replace(REQUEST, num_stages=num_stages, effort=1e-6))
        assert set(unmoved.device_of_stage) == {1, 2, 3}


@pytest.mark.parametrize("num_stages", [7, 17, 20])
def test_as_many_as_devices_have_no_even_share_of_are_refused(num_stages: int) -> None:
    one = chain([[1.0] * 24] * 4, training=Training(schedule=PipelineSchedule.INTERLEAVED, microbatches=4))
    with pytest.raises(Infeasible, match="ask for two to 4 times as many as some of the devices are"):
        optimal(one, replace(REQUEST, num_stages=num_stages))


def test_devices_of_a_v_are_in_the_order_of_their_links() -> None:
    """Two hosts of two; in the inventory's order each message would go between them."""
    host = [0, 1, 0, 1]
    one = chain(
        [[1.0] * 16] * 4,
        value_bytes=[10] * 17,
        per_byte=[[0.0 if one == other else 0.2 for other in host] for one in host],
        training=Training(schedule=PipelineSchedule.ZERO_BUBBLE_V, microbatches=4),
    )
    plan = partition(one, BRIEFLY)
    hosts = [host[device] for device in plan.device_of_stage]
    assert plan.num_stages in (4, 8)
    assert sum(one != other for one, other in pairwise(hosts)) <= 2
