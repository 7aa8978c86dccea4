"""The best order against every order of small steps, and against the named schedules under the same memory."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from planner.partition.objective import NAMED_SCHEDULES, V_SCHEDULES, PipelineSchedule
from planner.partition.training.memory import counted_microbatches
from planner.partition.training.named_orders import device_orders
from planner.partition.training.orders.best_order import BestOrder, best_order, quick_order
from planner.partition.training.orders.lower_bound import lower_bound
from planner.partition.training.orders.room import Room, most_alone
from planner.partition.training.pipeline_order import Pass, Step
from planner.partition.training.step_graph import Reduction, StageSeconds, TrainingStep, step_graph
from planner.partition.training.step_time import step_seconds
from tests.planner.partition.training.orders.exact_step import exact_seconds
from tests.planner.partition.training.orders.random_steps import random_step
from tests.random_examples import random_seeds

LITTLE = 1e-8


def small_step(seed: int) -> tuple[TrainingStep, Room]:
    """Of at most 15 passes."""
    rng = np.random.default_rng(seed)
    while True:
        step, room = random_step(rng, most_devices=3, most_microbatches=4, most_stages=4)
        if len(step.stages) * step.microbatches <= 5:
            return step, room


def check(step: TrainingStep, room: Room, orders: dict[int, tuple[Step, ...]]) -> None:
    """Complete, and within memory."""
    steps = [one for order in orders.values() for one in order]
    kinds = Pass.FORWARD, Pass.BACKWARD_INPUT, Pass.BACKWARD_WEIGHT
    needed = product(kinds, range(len(step.stages)), range(step.microbatches))
    assert sorted(map(repr, steps)) == sorted(repr(Step(*one)) for one in needed)
    assert room.fits(step, counted_microbatches(orders, len(step.stages)))


@pytest.mark.fuzz
@pytest.mark.parametrize("seed", random_seeds(40))
def test_small_steps_are_solved_and_the_bound_is_below_every_order(seed: int) -> None:
    step, room = small_step(seed)
    best = best_order(step, room)
    check(step, room, dict(best.orders))
    exact = exact_seconds(step, room, at_most=best.seconds * (1 + LITTLE))
    assert best.lower_bound_seconds <= exact * (1 + LITTLE)
    assert lower_bound(step_graph(step, split=True, most_kept=most_alone(step, room))) <= exact * (1 + LITTLE)
    # Of 1 000 such steps of up to 18 passes all were solved.
    assert best.seconds <= exact * (1 + LITTLE)


@pytest.mark.fuzz
@pytest.mark.parametrize("seed", random_seeds(10))
def test_small_steps_are_solved_whatever_weights_take_of_a_backward_pass(seed: int) -> None:
    step, room = small_step(seed)
    rng = np.random.default_rng(seed)
    shares = [float(rng.choice([0.0, rng.random(), 1.0])) for _ in step.stages]
    stages = (replace(stage, weight_share=share) for stage, share in zip(step.stages, shares, strict=True))
    step = replace(step, stages=tuple(stages))
    best = best_order(step, room)
    check(step, room, dict(best.orders))
    exact = exact_seconds(step, room, at_most=best.seconds * (1 + LITTLE))
    assert best.lower_bound_seconds <= exact * (1 + LITTLE)
    assert best.seconds <= exact * (1 + LITTLE)


@pytest.mark.fuzz
@pytest.mark.parametrize("seed", random_seeds(20))
def test_the_least_of_all_orders_is_as_long_as_the_longest_path_through_one(seed: int) -> None:
    """The oracle itself, from a bound that says nothing: what is searched takes what is searched to take."""
    step, room = random_step(np.random.default_rng(seed), most_devices=2, most_microbatches=2, most_stages=2)
    exact = exact_seconds(step, room, at_most=math.inf)
    assert best_order(step, room).seconds == pytest.approx(exact)
    assert step_seconds(step, quick_order(step, room)) >= exact * (1 - LITTLE)


@pytest.mark.fuzz
@pytest.mark.parametrize("seed", random_seeds(12))
def test_never_worse_than_a_named_schedule_in_the_same_memory(seed: int) -> None:
    step, room = random_step(np.random.default_rng(seed), most_devices=5, most_microbatches=8, most_stages=8)
    best = best_order(step, room)
    check(step, room, dict(best.orders))
    check(step, room, dict(quick_order(step, room)))
    assert best.lower_bound_seconds <= best.seconds == step_seconds(step, best.orders)
    for schedule in NAMED_SCHEDULES:
        orders = device_orders(schedule, step.microbatches, step.copies)
        if room.fits(step, counted_microbatches(orders, len(step.stages))):
            assert best.seconds <= step_seconds(step, orders) * (1 + LITTLE)
            if schedule in (PipelineSchedule.ZERO_BUBBLE, PipelineSchedule.ZERO_BUBBLE_H2):
                assert step_seconds(step, quick_order(step, room)) <= step_seconds(step, orders) * (1 + LITTLE)


@pytest.mark.parametrize("schedule", V_SCHEDULES)
def test_of_stages_in_a_v_no_worse_than_the_schedules_for_them(schedule: PipelineSchedule) -> None:
    """In the memory that these need. By priorities alone eight devices take up to 1.07 times as long."""
    one = StageSeconds(
        forward=1.0, backward=2.0, received=0.05, sent=0.05, gradients_received=0.05, gradients_sent=0.05
    )
    for num_devices, microbatches in product((2, 8), (4, 8)):
        where = (*range(num_devices), *reversed(range(num_devices)))
        edges = tuple((stage, stage + 1) for stage in range(2 * num_devices - 1))
        step = TrainingStep(
            copies=tuple((device,) for device in where),
            stages=(one,) * len(where),
            edges=edges,
            gradient_edges=edges,
            microbatches=microbatches,
        )
        orders = device_orders(schedule, microbatches, step.copies)
        kept = counted_microbatches(orders, len(where))
        room = Room(
            saved_bytes=(1,) * len(where),
            device_bytes={device: kept[device] + kept[-1 - device] for device in range(num_devices)},
        )
        assert step_seconds(step, quick_order(step, room)) <= step_seconds(step, orders) * (1 + LITTLE)


def test_what_skips_stages_may_be_sent_far_ahead() -> None:
    """The first of ten stages gives all others something: its order is as good as if it gave the next one alone."""
    seconds = []
    for pairs in ([], [(0, stage) for stage in range(2, 10)]):
        edges = tuple(sorted([*((stage, stage + 1) for stage in range(9)), *pairs]))
        seconds.append(chain([1.0] * 10, 12, kept=100, edges=edges, gradient_edges=edges).seconds)
    assert seconds[0] == seconds[1]


@pytest.mark.parametrize(("stages", "microbatches"), [(2, 2), (4, 4), (8, 8)])
def test_a_step_is_worth_a_zero_bubble_where_priorities_are_worse(stages: int, microbatches: int) -> None:
    """By priorities alone these take 3 to 13 % longer."""
    own = StageSeconds(forward=1.0, backward=2.0, received=0.1, sent=0.1, gradients_received=0.1, gradients_sent=0.1)
    edges = tuple((stage, stage + 1) for stage in range(stages - 1))
    step = TrainingStep(
        copies=tuple((stage,) for stage in range(stages)),
        stages=(own,) * stages,
        edges=edges,
        gradient_edges=edges,
        microbatches=microbatches,
    )
    room = Room(saved_bytes=(1,) * stages, device_bytes=dict.fromkeys(range(stages), 100))
    named = [device_orders(one, microbatches, step.copies) for one in NAMED_SCHEDULES if "zero" in one.value]
    assert step_seconds(step, quick_order(step, room)) <= min(step_seconds(step, orders) for orders in named)


def test_the_same_step_has_the_same_order() -> None:
    step, room = random_step(np.random.default_rng(3), most_devices=4, most_microbatches=6)
    assert best_order(step, room) == best_order(step, room)


def chain(seconds: list[float], microbatches: int, kept: int, **more: object) -> BestOrder:
    """One stage per device, each with room for `kept` microbatches; a backward pass takes twice a forward pass."""
    stages = tuple(
        StageSeconds(forward=own, backward=2 * own, received=0, sent=0, gradients_received=0, gradients_sent=0)
        for own in seconds
    )
    edges = tuple((stage, stage + 1) for stage in range(len(seconds) - 1))
    step = TrainingStep(
        copies=tuple((stage,) for stage in range(len(seconds))),
        stages=stages,
        edges=edges,
        gradient_edges=edges,
        microbatches=microbatches,
    )
    room = Room(saved_bytes=(1,) * len(seconds), device_bytes=dict.fromkeys(range(3 + len(seconds)), kept))
    return best_order(replace(step, **more), room)  # type: ignore[arg-type]


def test_equal_stages_with_memory_wait_for_the_first_microbatch_only() -> None:
    best = chain([1.0] * 4, 8, kept=8)
    assert best.seconds == pytest.approx(3 + 8 * 3)
    assert best.lower_bound_seconds == pytest.approx(best.seconds)


def test_room_for_one_microbatch_runs_them_one_after_another_through_the_first_stage() -> None:
    # From the first forward pass to the weights' on the first device: 1 + 1, then 1 + 1, and 1 of weights.
    best = chain([1.0] * 2, 3, kept=1)
    assert best.seconds == pytest.approx(3 * 5)
    assert best.lower_bound_seconds == pytest.approx(best.seconds)


def test_sums_at_the_end_belong_to_the_step_and_to_its_bound() -> None:
    sums = (Reduction(devices=(0, 1), seconds=4.0), Reduction(devices=(1, 2), seconds=2.0))
    best = chain([1.0] * 3, 4, kept=4, reductions=sums)
    # The middle device is done after 1 + 4 x 3, in time for the first sum; the last one, a second later, for the other.
    assert best.seconds == pytest.approx(1 + 4 * 3 + 4 + 2)
    assert best.lower_bound_seconds == pytest.approx(best.seconds)


def test_a_frozen_end_sends_no_gradients() -> None:
    best = chain([1.0] * 3, 4, kept=4, gradient_edges=())
    assert best.seconds == pytest.approx(2 + 4 * 3)


def test_a_device_without_a_microbatch_has_an_order_of_nothing() -> None:
    best = chain([1.0] * 2, 1, kept=1, copies=((0, 2), (1,)))
    assert best.orders[2] == ()
    assert best.seconds == pytest.approx(5.0)


def test_a_step_of_no_seconds_is_ordered_too() -> None:
    best = chain([0.0] * 2, 2, kept=2)
    assert best.seconds == best.lower_bound_seconds == 0.0
