"""Lanes of a forward pass, and schedules that the check must refuse."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from planner.errors import PlanInvariantError
from planner.plan.edges import sent_ahead
from planner.plan.options import Routing
from planner.plan.plan import Plan
from planner.schedule.actions import Action, Kind
from planner.schedule.check import check_schedule
from planner.schedule.inference import inference_schedule
from planner.schedule.schedule import DeviceLanes, Schedule
from tests.builders.plans import plan_of
from tests.builders.random_graphs import GraphWriter

TAKE_INPUT = Action(Kind.TAKE_INPUT, 0)
GIVE_OUTPUT = Action(Kind.GIVE_OUTPUT, 2)


def receive(edge: int) -> Action:
    return Action(Kind.RECEIVE, edge)


def forward(stage: int) -> Action:
    return Action(Kind.FORWARD, stage)


def send(edge: int) -> Action:
    return Action(Kind.SEND, edge)


def triangle(device_of_stage: tuple[int, ...] = (0, 1, 2), routing: Routing = Routing.DIRECT) -> Plan:
    """Stage 0 feeds 1 and 2, stage 1 feeds 2: edges 0 to 1, 0 to 2, 1 to 2."""
    writer = GraphWriter()
    first = writer.multiply(writer.input())
    second = writer.multiply(first)
    return plan_of(writer.graph(writer.multiply(first, second)), (0, 1, 2), routing, device_of_stage)


def with_lane(schedule: Schedule, stage: int, *actions: Action) -> Schedule:
    devices = tuple(
        replace(
            device,
            lanes=tuple(replace(lane, actions=actions) if lane.stage_index == stage else lane for lane in device.lanes),
        )
        for device in schedule.devices
    )
    return Schedule(devices=devices)


def test_each_stage_receives_runs_and_sends() -> None:
    plan = triangle()
    schedule = inference_schedule(plan)
    assert [lane.actions for lane in schedule.lanes] == [
        (TAKE_INPUT, forward(0), send(0), send(1)),
        (receive(0), forward(1), send(2)),
        (receive(1), receive(2), forward(2), GIVE_OUTPUT),
    ]
    check_schedule(schedule, plan)


def test_a_lone_stage_takes_and_gives() -> None:
    writer = GraphWriter()
    plan = plan_of(writer.graph(writer.multiply(writer.input())), (0,))
    schedule = inference_schedule(plan)
    assert [lane.actions for lane in schedule.lanes] == [(TAKE_INPUT, forward(0), Action(Kind.GIVE_OUTPUT, 0))]
    check_schedule(schedule, plan)


def test_what_only_tells_of_a_microbatch_goes_out_first() -> None:
    writer = GraphWriter()
    first = writer.multiply(writer.input())
    plan = plan_of(writer.graph(writer.multiply(first, writer.multiply(writer.state()))), (0, 1, 2))
    schedule = inference_schedule(plan)
    empty_send, *others = schedule.lanes[0].actions[1:]
    assert empty_send.kind is Kind.SEND
    assert not plan.edges[empty_send.index].value_ids
    assert others[0] == forward(0)
    check_schedule(schedule, plan)
    late = with_lane(schedule, 0, TAKE_INPUT, *others, empty_send)
    with pytest.raises(PlanInvariantError, match="stage 0 before it runs"):
        check_schedule(late, plan)


def towers(*, routing: Routing = Routing.DIRECT) -> Plan:
    """Each of the first two stages reads an input of its own; the third joins them and reads the first input again."""
    writer = GraphWriter()
    one, other = writer.input(), writer.input()
    first, second = writer.multiply(one), writer.multiply(other)
    joined = writer.multiply(writer.multiply(first, second), one)
    return plan_of(writer.graph(joined), (0, 1, 2, 2), routing)


def test_inputs_go_ahead_where_nothing_goes_with_them() -> None:
    plan = towers()
    assert [(edge.source_stage, edge.target_stage) for edge in plan.edges] == [(0, 1), (0, 2), (1, 2)]
    assert sent_ahead(plan) == {0}
    schedule = inference_schedule(plan)
    assert schedule.lanes[0].actions == (TAKE_INPUT, send(0), forward(0), send(1))
    check_schedule(schedule, plan)
    with pytest.raises(PlanInvariantError, match="stage 0 before it runs"):
        check_schedule(with_lane(schedule, 0, TAKE_INPUT, forward(0), send(0), send(1)), plan)
    # What the first stage makes passes through the second.
    assert sent_ahead(towers(routing=Routing.RELAY)) == set()


def test_stages_of_one_device_have_a_lane_each() -> None:
    plan = triangle(device_of_stage=(0, 1, 0))
    schedule = inference_schedule(plan)
    lanes = {device.device_id: [lane.stage_index for lane in device.lanes] for device in schedule.devices}
    assert lanes == {"node0/cpu": [0, 2], "node1/cpu": [1]}
    check_schedule(schedule, plan)


def test_relay_has_neighbour_edges_only() -> None:
    plan = triangle(routing=Routing.RELAY)
    schedule = inference_schedule(plan)
    assert schedule.lanes[2].actions == (receive(1), forward(2), GIVE_OUTPUT)
    check_schedule(schedule, plan)


def test_sending_to_the_far_stage_first_deadlocks_if_it_waits_for_the_near_one() -> None:
    plan = triangle()
    schedule = with_lane(inference_schedule(plan), 0, TAKE_INPUT, forward(0), send(1), send(0))
    check_schedule(schedule, plan)
    stuck = with_lane(schedule, 2, receive(2), receive(1), forward(2), GIVE_OUTPUT)
    with pytest.raises(PlanInvariantError, match="stage 0 at send 1"):
        check_schedule(stuck, plan)
    # One buffer on each edge is enough to let the sender go on.
    check_schedule(stuck, plan, capacity=1)


def move_to_another_device(schedule: Schedule) -> Schedule:
    first, second, *others = schedule.devices
    return Schedule(
        devices=(
            DeviceLanes(device_id=first.device_id, lanes=second.lanes),
            DeviceLanes(device_id=second.device_id, lanes=first.lanes),
            *others,
        )
    )


WRONG: dict[str, tuple[str, Callable[[Schedule], Schedule]]] = {
    "a stage without a lane": ("one_lane_per_stage", lambda sound: Schedule(devices=sound.devices[1:])),
    "a stage with two lanes": ("one_lane_per_stage", lambda sound: Schedule(devices=sound.devices[:1] + sound.devices)),
    "a lane on another device": ("lane_device", move_to_another_device),
    "no forward": ("one_forward", lambda sound: with_lane(sound, 1, receive(0), send(2))),
    "two forwards": ("one_forward", lambda sound: with_lane(sound, 1, receive(0), forward(1), forward(1), send(2))),
    "a receive after the forward": ("matching_actions", lambda sound: with_lane(sound, 1, forward(1), receive(0))),
    "a receive missing": ("matching_actions", lambda sound: with_lane(sound, 1, forward(1), send(2))),
    "a send missing": ("matching_actions", lambda sound: with_lane(sound, 1, receive(0), forward(1))),
    "a send twice": (
        "matching_actions",
        lambda sound: with_lane(sound, 1, receive(0), forward(1), send(2), send(2)),
    ),
    "input taken by another stage": (
        "matching_actions",
        lambda sound: with_lane(sound, 1, TAKE_INPUT, receive(0), forward(1), send(2)),
    ),
    "output never given": ("matching_actions", lambda sound: with_lane(sound, 2, receive(1), receive(2), forward(2))),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_schedule_is_refused(name: str) -> None:
    invariant, breaks = WRONG[name]
    plan = triangle()
    with pytest.raises(PlanInvariantError) as refused:
        check_schedule(breaks(inference_schedule(plan)), plan)
    assert refused.value.metadata["invariant"] == invariant
