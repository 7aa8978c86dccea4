"""The check accepts an order of actions exactly where running it on symbols gives the right training step."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import pytest

from planner.errors import PlanInvariantError
from planner.partition.objective import NAMED_SCHEDULES, PipelineSchedule
from planner.plan.plan import Plan
from planner.schedule.actions import NO_MICROBATCH, Action, Kind
from planner.schedule.check_training import check_training_schedule
from planner.schedule.training import TrainingSchedule, training_schedule
from tests.nightly import nightly
from tests.planner.schedule.steps import training_plan
from tests.planner.schedule.symbolic_step import is_right, most_kept
from tests.random_examples import random_seeds

PLANS: Mapping[str, dict[str, Any]] = {
    "one stage": {"devices": [[0]], "pairs": [], "microbatches": 3},
    "a skip edge, and a tie over it": {
        "devices": [[0], [1], [2]],
        "pairs": [(0, 1), (0, 2), (1, 2)],
        "microbatches": 3,
        "ties": [[0, 2]],
    },
    "copies, one without a microbatch": {
        "devices": [[0], [1, 2, 3]],
        "pairs": [(0, 1)],
        "microbatches": 2,
    },
    "a tie between copies and a lone stage": {
        "devices": [[0, 1], [2], [3]],
        "pairs": [(0, 1), (1, 2)],
        "microbatches": 3,
        "ties": [[0, 2], [1, 2]],
    },
    "a tie of two stages on one device": {
        "devices": [[0], [1], [0]],
        "pairs": [(0, 1), (0, 2), (1, 2)],
        "microbatches": 3,
        "ties": [[0, 2]],
    },
    "a tie of two stages with the same copies": {
        "devices": [[0, 1], [2], [0, 1]],
        "pairs": [(0, 1), (1, 2)],
        "microbatches": 2,
        "ties": [[0, 2]],
    },
    "nothing trained before the third stage": {
        "devices": [[0], [1], [2], [1]],
        "pairs": [(0, 1), (0, 3), (1, 2), (2, 3)],
        "microbatches": 2,
        "frozen": [0, 1],
    },
    "nothing trained between": {
        "devices": [[0], [1], [2]],
        "pairs": [(0, 1), (1, 2)],
        "microbatches": 3,
        "frozen": [1],
        "ties": [[0, 2]],
    },
}
CASES = [(name, schedule) for name in PLANS for schedule in NAMED_SCHEDULES]
# Each plan under two schedules, each schedule with three plans or more; the others in the nightly run.
FEW = [
    (name, NAMED_SCHEDULES[(at + ahead) % len(NAMED_SCHEDULES)]) for at, name in enumerate(PLANS) for ahead in (0, 2)
]
FEW_AND_NIGHTLY = [*FEW, *nightly(case for case in CASES if case not in FEW)]


def planned(name: str, schedule: PipelineSchedule) -> tuple[Plan, TrainingSchedule]:
    plan = training_plan(schedule, **PLANS[name])
    return plan, training_schedule(plan)


def is_accepted(schedule: TrainingSchedule, plan: Plan) -> bool:
    try:
        check_training_schedule(schedule, plan)
    except PlanInvariantError:
        return False
    return True


def with_actions(schedule: TrainingSchedule, at: int, actions: list[Action]) -> TrainingSchedule:
    changed = replace(schedule.devices[at], actions=tuple(actions))
    return replace(schedule, devices=(*schedule.devices[:at], changed, *schedule.devices[at + 1 :]))


def neighbours_swapped(schedule: TrainingSchedule) -> Iterator[tuple[TrainingSchedule, str]]:
    for at, device in enumerate(schedule.devices):
        for position in range(len(device.actions) - 1):
            actions = list(device.actions)
            actions[position : position + 2] = reversed(actions[position : position + 2])
            yield with_actions(schedule, at, actions), f"{device.device_id}: {actions[position : position + 2]}"


@pytest.mark.slow
@pytest.mark.parametrize(("name", "order"), FEW_AND_NIGHTLY)
def test_neighbours_may_change_places_exactly_where_the_step_stays_right(name: str, order: PipelineSchedule) -> None:
    plan, schedule = planned(name, order)
    room = most_kept(schedule)
    assert is_right(schedule, plan, room)
    assert is_accepted(schedule, plan)
    verdicts = set()
    for changed, what in neighbours_swapped(schedule):
        right = is_right(changed, plan, room)
        assert is_accepted(changed, plan) == right, what
        verdicts.add(right)
    assert verdicts == {True, False}


@pytest.mark.parametrize("order", [PipelineSchedule.ONE_F_ONE_B, PipelineSchedule.ZERO_BUBBLE])
@pytest.mark.parametrize("name", [name for name in PLANS if "tie" in name])
def test_what_ends_a_step_may_move_exactly_where_the_step_stays_right(name: str, order: PipelineSchedule) -> None:
    plan, schedule = planned(name, order)
    room = most_kept(schedule)
    for at, device in enumerate(schedule.devices):
        ends = [position for position, action in enumerate(device.actions) if action.microbatch == NO_MICROBATCH]
        for position in ends:
            for place in range(max(0, ends[0] - 5), len(device.actions)):
                actions = list(device.actions)
                actions.insert(place, actions.pop(position))
                changed = with_actions(schedule, at, actions)
                assert is_accepted(changed, plan) == is_right(changed, plan, room), (device.actions[position], place)


@pytest.mark.fuzz
@pytest.mark.parametrize("seed", random_seeds(4))
def test_actions_may_move_exactly_where_the_step_stays_right(seed: int) -> None:
    choice = random.Random(seed)
    verdicts = []
    for _ in range(50):
        plan, schedule = planned(*choice.choice(CASES))
        room = most_kept(schedule)
        for _ in range(choice.randint(0, 3)):
            at = choice.randrange(len(schedule.devices))
            actions = list(schedule.devices[at].actions)
            start = choice.randrange(len(actions))
            actions.insert(min(max(start + choice.randint(-6, 6), 0), len(actions) - 1), actions.pop(start))
            schedule = with_actions(schedule, at, actions)
        verdicts.append(is_right(schedule, plan, room))
        assert is_accepted(schedule, plan) == verdicts[-1], schedule
    assert True in verdicts
    assert False in verdicts


@pytest.mark.parametrize(("name", "order"), FEW_AND_NIGHTLY)
def test_no_action_may_lack_or_be_done_twice(name: str, order: PipelineSchedule) -> None:
    plan, schedule = planned(name, order)
    for at, device in enumerate(schedule.devices):
        # Of each kind the last of a device: what comes after it depends least on it.
        last = {action.kind: position for position, action in enumerate(device.actions)}
        for position in last.values():
            without = [*device.actions[:position], *device.actions[position + 1 :]]
            twice = [*device.actions[: position + 1], *device.actions[position:]]
            assert not is_accepted(with_actions(schedule, at, without), plan)
            assert not is_accepted(with_actions(schedule, at, twice), plan)
            assert not is_accepted(with_actions(schedule, at, [*device.actions, device.actions[position]]), plan)


def moved(schedule: TrainingSchedule, device_id: str, kind: Kind, index: int, *, before: Kind) -> TrainingSchedule:
    """The device's last action of a kind stands right before its last one of another kind and index."""
    at = next(at for at, device in enumerate(schedule.devices) if device.device_id == device_id)
    actions = list(schedule.devices[at].actions)
    action = next(action for action in reversed(actions) if action.kind is kind)
    actions.remove(action)
    place = max(p for p, other in enumerate(actions) if other.kind is before and other.index == index)
    return with_actions(schedule, at, [*actions[:place], action, *actions[place:]])


STEP_ENDS = [
    ("all agree before tied gradients are summed", "d0", Kind.AGREE, 0, Kind.REDUCE_TIED),
    ("all agree before copies are summed", "d0", Kind.AGREE, 0, Kind.REDUCE_GRADIENTS),
    ("a step before all agree", "d0", Kind.OPTIMIZER_STEP, 0, Kind.AGREE),
    ("tied gradients summed before those of copies", "d0", Kind.REDUCE_TIED, 0, Kind.REDUCE_GRADIENTS),
    ("a step before its last backward pass", "d3", Kind.OPTIMIZER_STEP, 2, Kind.BACKWARD),
    ("tied gradients summed before the last backward pass", "d3", Kind.REDUCE_TIED, 2, Kind.BACKWARD),
    ("copies summed before a backward pass", "d1", Kind.REDUCE_GRADIENTS, 0, Kind.BACKWARD),
]


@pytest.mark.parametrize(("what", "device_id", "kind", "index", "before"), STEP_ENDS, ids=[one[0] for one in STEP_ENDS])
def test_the_end_of_the_step_has_an_order(what: str, device_id: str, kind: Kind, index: int, before: Kind) -> None:
    plan, schedule = planned("a tie between copies and a lone stage", PipelineSchedule.ONE_F_ONE_B)
    with pytest.raises(PlanInvariantError, match=f"{device_id!r} does {kind.value} .* before ") as refused:
        check_training_schedule(moved(schedule, device_id, kind, index, before=before), plan)
    assert refused.value.metadata["invariant"] == "order"


def test_a_tie_on_one_device_is_stepped_after_the_passes_of_all_who_hold_it() -> None:
    plan, schedule = planned("a tie of two stages on one device", PipelineSchedule.ONE_F_ONE_B)
    assert schedule.devices[0].actions[-1] == Action(Kind.OPTIMIZER_STEP, 2)
    with pytest.raises(PlanInvariantError, match="does agree 0 before backward 0 of microbatch 2"):
        check_training_schedule(moved(schedule, "d0", Kind.AGREE, 0, before=Kind.BACKWARD), plan)


def test_a_microbatch_is_kept_until_its_pass_for_weights() -> None:
    plan = training_plan(PipelineSchedule.ZERO_BUBBLE, devices=[[0], [1]], pairs=[(0, 1)], microbatches=4)
    schedule = training_schedule(plan)
    actions = list(schedule.devices[1].actions)
    early = [Action(Kind.RECEIVE, 0, 2), Action(Kind.FORWARD, 1, 2)]
    actions = [action for action in actions if action not in early]
    place = actions.index(Action(Kind.BACKWARD_WEIGHT, 1, 0))
    with pytest.raises(PlanInvariantError, match="stage 1 keeps 3 microbatches on 'd1', memory is planned for 2"):
        check_training_schedule(with_actions(schedule, 1, [*actions[:place], *early, *actions[place:]]), plan)


@pytest.mark.parametrize("microbatches", [2, 4])
def test_a_schedule_of_another_number_of_microbatches_is_refused(microbatches: int) -> None:
    schedule = PipelineSchedule.ONE_F_ONE_B
    plan, _ = planned("one stage", schedule)
    other = training_plan(schedule, **{**PLANS["one stage"], "microbatches": microbatches})
    with pytest.raises(PlanInvariantError, match=f"of {microbatches} microbatches, the plan is for 3") as refused:
        check_training_schedule(training_schedule(other), plan)
    assert refused.value.metadata["invariant"] == "microbatches"


def test_a_plan_for_inference_has_no_training_schedule() -> None:
    plan, schedule = planned("one stage", PipelineSchedule.GPIPE)
    with pytest.raises(PlanInvariantError, match="the plan is for no training step"):
        check_training_schedule(schedule, replace(plan, options=replace(plan.options, training=None)))
