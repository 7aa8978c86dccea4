"""Training schedules that the check must refuse, each by the name of what it breaks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from planner.errors import PlanInvariantError
from planner.partition.objective import NAMED_SCHEDULES, PipelineSchedule
from planner.plan.plan import Plan
from planner.schedule.actions import Action, Kind
from planner.schedule.check_training import check_training_schedule
from planner.schedule.training import DeviceActions, TrainingSchedule, training_schedule
from tests.planner.schedule.steps import chain_plan, training_plan

Actions = tuple[Action, ...]
PLAN = chain_plan([1.0, 1.0, 1.0], microbatches=4, gradient_bytes=8)


def changed(device: int, change: Callable[[Actions], Actions]) -> TrainingSchedule:
    schedule = training_schedule(PLAN)
    devices = list(schedule.devices)
    devices[device] = replace(devices[device], actions=change(devices[device].actions))
    return replace(schedule, devices=tuple(devices))


def swapped(first: Action, second: Action) -> Callable[[Actions], Actions]:
    other = {first: second, second: first}
    return lambda actions: tuple(other.get(action, action) for action in actions)


def forward_first(actions: Actions) -> Actions:
    """All of GPipe's forward passes before 1F1B's backward ones."""
    forward = {Kind.TAKE_INPUT, Kind.RECEIVE, Kind.FORWARD, Kind.SEND}
    return (*(one for one in actions if one.kind in forward), *(one for one in actions if one.kind not in forward))


def late_first_send(actions: Actions) -> Actions:
    """The first message after the second: both passes have run, only the messages are out of order."""
    first, second = Action(Kind.SEND, 0, 0), Action(Kind.SEND, 0, 1)
    without = [action for action in actions if action != first]
    at = without.index(second) + 1
    return (*without[:at], first, *without[at:])


WRONG: dict[str, tuple[str, Callable[[], TrainingSchedule]]] = {
    "a device without actions": (
        "devices",
        lambda: replace(training_schedule(PLAN), devices=training_schedule(PLAN).devices[:2]),
    ),
    "a device twice": (
        "devices",
        lambda: replace(training_schedule(PLAN), devices=training_schedule(PLAN).devices * 2),
    ),
    "a pass missing": ("matching_actions", lambda: changed(1, lambda actions: actions[:1] + actions[2:])),
    "a pass twice": ("matching_actions", lambda: changed(1, lambda actions: actions + actions[1:2])),
    "no optimizer step": ("matching_actions", lambda: changed(2, lambda actions: actions[:-1])),
    "backward before forward": (
        "order",
        lambda: changed(2, swapped(Action(Kind.FORWARD, 2, 0), Action(Kind.BACKWARD, 2, 0))),
    ),
    "sent before it is made": (
        "order",
        lambda: changed(0, swapped(Action(Kind.FORWARD, 0, 0), Action(Kind.SEND, 0, 0))),
    ),
    "a step before the last microbatch": ("order", lambda: changed(0, lambda actions: (actions[-1], *actions[:-1]))),
    "more microbatches than memory has room for": ("kept_microbatches", lambda: changed(0, forward_first)),
    "messages in another order": ("matching_order", lambda: changed(0, late_first_send)),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_schedule_is_refused(name: str) -> None:
    invariant, breaks = WRONG[name]
    with pytest.raises(PlanInvariantError) as refused:
        check_training_schedule(breaks(), PLAN)
    assert refused.value.metadata["invariant"] == invariant


def test_each_waiting_for_the_other_is_a_deadlock() -> None:
    plan = chain_plan([1.0, 1.0], microbatches=2)
    # The first stage wants a gradient before it has sent what the second needs for any.
    starved = DeviceActions(
        device_id="d0",
        actions=(
            Action(Kind.TAKE_INPUT, 0, 0),
            Action(Kind.FORWARD, 0, 0),
            Action(Kind.RECEIVE_GRADIENT, 0, 0),
            Action(Kind.BACKWARD, 0, 0),
            Action(Kind.SEND, 0, 0),
            Action(Kind.TAKE_INPUT, 0, 1),
            Action(Kind.FORWARD, 0, 1),
            Action(Kind.SEND, 0, 1),
            Action(Kind.RECEIVE_GRADIENT, 0, 1),
            Action(Kind.BACKWARD, 0, 1),
            Action(Kind.AGREE, 0),
        ),
    )
    schedule = training_schedule(plan)
    with pytest.raises(PlanInvariantError, match=r"'d1' at receive 0 of microbatch 0"):
        check_training_schedule(replace(schedule, devices=(starved, schedule.devices[1])), plan)


def near_edge_first(plan: Plan) -> TrainingSchedule:
    """The first stage sends every microbatch to the second before it sends any to the third, which needs both."""
    schedule = training_schedule(plan)
    far = [action for action in schedule.devices[0].actions if action.kind is Kind.SEND and action.index == 1]
    near = [action for action in schedule.devices[0].actions if action not in far]
    place = max(position for position, action in enumerate(near) if action.kind is Kind.SEND) + 1
    first = replace(schedule.devices[0], actions=(*near[:place], *far, *near[place:]))
    return replace(schedule, devices=(first, *schedule.devices[1:]))


@pytest.mark.parametrize(("microbatches", "capacity"), [(3, 1), (5, 2), (7, 3)])
def test_a_sender_waits_for_a_buffer(microbatches: int, capacity: int) -> None:
    """The second stage takes one more than its edge to the third holds, and the first edge holds as many again."""
    pairs = [(0, 1), (0, 2), (1, 2)]

    def plan(count: int) -> Plan:
        return training_plan(PipelineSchedule.GPIPE, devices=[[0], [1], [2]], pairs=pairs, microbatches=count)

    check_training_schedule(near_edge_first(plan(microbatches)), plan(microbatches), capacity=capacity)
    with pytest.raises(PlanInvariantError, match=r"'d0' at send ") as refused:
        check_training_schedule(near_edge_first(plan(microbatches + 1)), plan(microbatches + 1), capacity=capacity)
    assert refused.value.metadata["invariant"] == "no_deadlock"


@pytest.mark.slow
@pytest.mark.parametrize("schedule", NAMED_SCHEDULES)
@pytest.mark.parametrize("stages", [1, 2, 5, 16])
@pytest.mark.parametrize("microbatches", [1, 3, 16, 40])
def test_every_schedule_passes_with_two_buffers(schedule: PipelineSchedule, stages: int, microbatches: int) -> None:
    plan = chain_plan([1.0] * stages, schedule, microbatches=microbatches)
    check_training_schedule(training_schedule(plan), plan)


@pytest.mark.parametrize("schedule", NAMED_SCHEDULES)
def test_copies_pass_too(schedule: PipelineSchedule) -> None:
    plan = chain_plan([1.0] * 3, schedule, microbatches=7, devices=[[0, 1], [2], [3, 4, 5]], gradient_bytes=8)
    training = training_schedule(plan)
    check_training_schedule(training, plan)
    assert all(action.kind is not Kind.REDUCE_TIED for device in training.devices for action in device.actions)
    last = {device.device_id: device.actions[-3].kind for device in training.devices}
    assert last["d0"] is Kind.REDUCE_GRADIENTS
    assert last["d2"] is not Kind.REDUCE_GRADIENTS
