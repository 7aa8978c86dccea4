"""What messages and sums of gradients take over uneven links, by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from planner.cost.inventory import Inventory, LinkSpeed
from planner.partition.objective import PipelineSchedule
from planner.plan.plan import Plan
from planner.schedule.link_seconds import Messages, gradient_bytes, reduction_seconds, stage_messages
from planner.schedule.simulate import simulate
from planner.schedule.timeline import Activity
from planner.schedule.training import training_schedule
from tests.planner.schedule.steps import training_plan

FAST = LinkSpeed(bytes_per_second=48.0, latency_seconds=0.125)
SLOW = LinkSpeed(bytes_per_second=12.0, latency_seconds=0.25)
LATE = LinkSpeed(bytes_per_second=24.0, latency_seconds=1.0)


def linked(plan: Plan, links: dict[tuple[str, str], LinkSpeed]) -> Plan:
    """Every message is one tensor of 48 bytes: a second over FAST, four over SLOW, two over LATE."""
    return replace(
        plan, inventory=Inventory(devices=plan.inventory.devices, links=links, default_link=plan.inventory.default_link)
    )


def skipping() -> Plan:
    plan = training_plan(
        PipelineSchedule.GPIPE, devices=[[0], [1], [2]], pairs=[(0, 1), (0, 2), (1, 2)], microbatches=1, frozen=[0]
    )
    links = {("d0", "d1"): FAST, ("d0", "d2"): SLOW, ("d1", "d2"): FAST, ("d2", "d1"): LATE}
    return with_live_values(linked(plan, links))


def with_live_values(plan: Plan) -> Plan:
    """Each stage's table lists what its edges bring, as sizes are looked up there."""
    entries = {entry.value_id: entry for stage in plan.stages for entry in stage.liveness}
    return replace(
        plan,
        stages=tuple(
            replace(
                stage,
                liveness=tuple(
                    replace(entries[edge.value_ids[0]], size_bytes=48)
                    for edge in plan.edges
                    if edge.target_stage == stage.index
                ),
            )
            for stage in plan.stages
        ),
    )


def test_a_value_that_goes_to_two_stages_is_paid_once_over_its_slowest_link() -> None:
    first, second, third = stage_messages(skipping())
    # One latency, the larger; 4 s over the slow link, not 4 + 1.
    assert first == Messages(received=0.0, sent=0.25 + 4.0, gradients_received=0.0, gradients_sent=0.0)
    assert second == Messages(received=0.125 + 1.0, sent=0.125 + 1.0, gradients_received=1.0 + 2.0, gradients_sent=0.0)
    # Two values enter, each over its own link; only the second's gradient goes back, by the other direction's link.
    assert third == Messages(received=0.25 + 4.0 + 1.0, sent=0.0, gradients_received=0.0, gradients_sent=1.0 + 2.0)


def test_only_gradients_come_back() -> None:
    assert gradient_bytes(skipping()) == (0, 0, 48)


def test_a_message_back_is_as_large_as_the_gradients_in_it() -> None:
    plan = with_live_values(training_plan(PipelineSchedule.GPIPE, devices=[[0], [1]], pairs=[(0, 1)], microbatches=1))
    edge, entry = plan.edges[0], plan.stages[1].liveness[0]
    table = (entry, replace(entry, value_id=9, size_bytes=24))
    plan = replace(
        plan,
        stages=(plan.stages[0], replace(plan.stages[1], liveness=table)),
        edges=(replace(edge, value_ids=(*edge.value_ids, 9), size_bytes=72, gradient_value_ids=(9,)),),
    )
    simulation = simulate(plan, training_schedule(plan), microbatches=1)
    assert gradient_bytes(plan) == (24,)
    assert [(transfer.is_gradient, transfer.size_bytes) for transfer in simulation.transfers] == [
        (False, 72),
        (True, 24),
    ]


def test_a_gradient_of_no_bytes_costs_no_latency() -> None:
    plan = linked(
        training_plan(PipelineSchedule.GPIPE, devices=[[0], [1]], pairs=[(0, 1)], microbatches=1),
        {("d0", "d1"): FAST, ("d1", "d0"): LATE},
    )
    empty = replace(plan.stages[1].liveness[0], size_bytes=0)
    plan = replace(plan, stages=(plan.stages[0], replace(plan.stages[1], liveness=(empty,))))
    first, second = stage_messages(plan)
    assert (first.sent, first.gradients_received) == (0.125, 0.0)
    assert (second.received, second.gradients_sent) == (0.125, 0.0)


def test_between_copies_the_slowest_link_counts() -> None:
    plan = training_plan(PipelineSchedule.GPIPE, devices=[[0, 1], [1, 2]], pairs=[(0, 1)], microbatches=2)
    plan = linked(plan, {("d0", "d1"): FAST, ("d0", "d2"): LATE, ("d1", "d2"): SLOW})
    # The least rate and the largest latency need not be of one link.
    assert stage_messages(with_live_values(plan))[0].sent == 1.0 + 48 / 12


def test_stages_of_one_device_have_nothing_to_send() -> None:
    plan = training_plan(PipelineSchedule.GPIPE, devices=[[0], [0]], pairs=[(0, 1)], microbatches=2)
    assert set(stage_messages(plan)) == {Messages(received=0.0, sent=0.0, gradients_received=0.0, gradients_sent=0.0)}


def test_a_sum_goes_to_the_first_device_and_back_over_the_slowest_link_of_either_direction() -> None:
    plan = training_plan(PipelineSchedule.GPIPE, devices=[[0, 1, 2]], pairs=[], microbatches=3)
    links = {(f"d{a}", f"d{b}"): FAST for a in range(3) for b in range(3) if a != b}
    plan = linked(plan, {**links, ("d2", "d0"): SLOW, ("d1", "d0"): LATE})
    # 2 x (3 - 1) messages.
    assert reduction_seconds(plan, ("d0", "d1", "d2"), 36) == pytest.approx(4 * (1.0 + 36 / 12))
    assert reduction_seconds(plan, ("d0", "d1"), 96) == pytest.approx(2 * (1.0 + 96 / 24))
    # The first and the third device have nothing to say to one another.
    assert reduction_seconds(plan, ("d1", "d0", "d2"), 96) == pytest.approx(4 * (1.0 + 96 / 24))


def test_copies_are_summed_before_ties_and_the_step_ends_after_both() -> None:
    plan = training_plan(PipelineSchedule.GPIPE, devices=[[0, 1], [2]], pairs=[(0, 1)], microbatches=2, ties=[[0, 1]])
    pairs = {(f"d{a}", f"d{b}"): FAST for a in range(3) for b in range(3) if a != b}
    plan = linked(plan, pairs)
    simulation = simulate(plan, training_schedule(plan), microbatches=2)
    sums = [(e.device_id, e.start_seconds, e.end_seconds) for e in simulation.events if e.activity is Activity.REDUCE]
    # 8 bytes of gradients, of which 4 are tied: 4 between two copies, then 4 between three devices.
    copies, tied = 2 * (0.125 + 4 / 48), 4 * (0.125 + 4 / 48)
    start = min(begin for device_id, begin, _ in sums if device_id == "d0")
    assert [device_id for device_id, _, _ in sums] == ["d0", "d0", "d1", "d1", "d2"]
    assert {event.stage for event in simulation.events if event.activity is Activity.REDUCE} == {0}
    assert sums[0] == pytest.approx(("d0", start, start + copies))
    assert sums[4] == pytest.approx(("d2", start + copies, start + copies + tied))
    # Then all three agree, there and back; updating 8 bytes takes nothing.
    assert simulation.makespan_seconds == pytest.approx(start + copies + tied + 2 * 0.125)
