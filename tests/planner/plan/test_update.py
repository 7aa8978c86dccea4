"""Norms and optimizers at a step's end: their seconds, where a plan has them, and that everybody counts the same."""

from __future__ import annotations

from dataclasses import replace

import pytest

from planner.cost.inventory import Device, Inventory, LinkSpeed
from planner.partition.objective import Training
from planner.partition.training.update import update_seconds
from planner.plan.explain import explain
from planner.plan.options import BalancedMode, PlanOptions
from planner.plan.plan import StageMemory
from planner.plan.update import after_passes, agreement, device_updates
from planner.planning import make_plan
from planner.schedule.prediction import idle_share, predict
from planner.schedule.timeline import Activity
from tests.builders.random_graphs import random_graph
from tests.planner.schedule.steps import chain_plan
from tests.planner.schedule.test_reschedule import trained

GIB = 1 << 30


def test_each_gradient_is_read_twice_each_weight_and_state_read_and_written() -> None:
    seconds = update_seconds(100, 30, 20.0, 10.0)
    assert (seconds.norms, seconds.optimizer, seconds.both) == (5.0, 36.0, 41.0)


def test_stages_of_a_device_are_updated_together_at_the_rate_of_the_device_or_its_kind() -> None:
    plan = chain_plan([1.0, 1.0, 1.0, 1.0], devices=[[0], [1], [0], [2]], gradient_bytes=20 * 10**9)
    devices = (*plan.inventory.devices[:1], replace(plan.inventory.devices[1], memory_bytes_per_second=1e9))
    last = replace(plan.stages[3], memory=StageMemory(state_bytes=1, activation_bytes=0, buffer_bytes=0))
    plan = replace(
        plan,
        inventory=Inventory(devices=(*devices, plan.inventory.devices[2])),
        stages=(*plan.stages[:3], last),
    )
    assert {device: seconds.norms for device, seconds in device_updates(plan).items()} == {"d0": 2.0, "d1": 20.0}


def test_simulated_update_follows_the_last_pass_of_all_devices() -> None:
    before = predict(chain_plan([1.0, 2.0]))
    plan = chain_plan([1.0, 2.0], gradient_bytes=20 * 10**9)
    prediction = predict(plan)
    updates = {(event.device_id, event.activity): event for event in prediction.events if event.microbatch < 0}
    for device in ("d0", "d1"):
        norms, optimizer = updates[device, Activity.AGREE], updates[device, Activity.OPTIMIZER_STEP]
        assert (norms.start_seconds, norms.end_seconds) == (before.makespan_seconds, before.makespan_seconds + 1.0)
        assert (optimizer.start_seconds, optimizer.end_seconds) == (norms.end_seconds, prediction.makespan_seconds)
    assert prediction.makespan_seconds == before.makespan_seconds + 4.0
    # As daemons measure it, an optimizer computes and an agreement does not.
    busy = [device.busy_seconds for device in before.devices]
    assert [device.busy_seconds for device in prediction.devices] == [seconds + 3.0 for seconds in busy]
    assert idle_share(plan, prediction) == pytest.approx(1 - (sum(busy) + 6.0) / (2 * prediction.makespan_seconds))


def test_no_optimizer_steps_before_all_norms_have_crossed_and_come_back() -> None:
    """Norms of 1 s and 10 s, links of 2 s each way to the second device and 3 and 0.5 s to the third."""
    plan = chain_plan([1.0, 2.0, 1.0], gradient_bytes=20 * 10**9)
    first, second, third = plan.inventory.devices
    links = {
        ("d0", "d1"): LinkSpeed(bytes_per_second=1e30, latency_seconds=2.0),
        ("d1", "d0"): LinkSpeed(bytes_per_second=1e30, latency_seconds=2.0),
        ("d0", "d2"): LinkSpeed(bytes_per_second=1e30, latency_seconds=3.0),
        ("d2", "d0"): LinkSpeed(bytes_per_second=1e30, latency_seconds=0.5),
    }
    slow = replace(second, memory_bytes_per_second=2e9)
    last = replace(plan.stages[2], memory=StageMemory(state_bytes=1, activation_bytes=0, buffer_bytes=0))
    plan = replace(
        plan,
        inventory=replace(plan.inventory, devices=(first, slow, third), links=links),
        stages=(*plan.stages[:2], last),
    )
    assert agreement(plan) == 2.0 + 3.0
    assert after_passes(plan) == 10.0 + 5.0 + 30.0
    prediction = predict(plan)
    updates = {(event.device_id, event.activity): event for event in prediction.events if event.microbatch < 0}
    ends = {device: updates[device, Activity.AGREE].end_seconds for device in ("d0", "d1", "d2")}
    assert set(ends.values()) == {prediction.makespan_seconds - 30.0}
    # What trains nothing agrees, and steps nothing.
    assert ("d2", Activity.OPTIMIZER_STEP) not in updates
    assert updates["d0", Activity.OPTIMIZER_STEP].end_seconds == ends["d0"] + 3.0


def test_one_device_has_nobody_to_agree_with() -> None:
    plan = chain_plan([1.0, 2.0], devices=[[0], [0]], transfer_seconds=5.0, gradient_bytes=10 * 10**9)
    [seconds] = device_updates(plan).values()
    assert after_passes(plan) == seconds.both
    assert after_passes(chain_plan([1.0, 2.0], transfer_seconds=5.0)) == 0.0


def test_a_plan_counts_what_its_simulation_counts_and_says_it() -> None:
    device = Device(id="d0", kind="cpu", host="h", memory_bytes=GIB, memory_bytes_per_second=1e3)
    inventory = Inventory(devices=(device, replace(device, id="d1", memory_bytes_per_second=2e3)))
    options = PlanOptions(mode=BalancedMode(num_stages=2), training=Training(microbatches=3))
    plan = make_plan(trained(random_graph(1, 14)), "id", inventory, options)
    assert after_passes(plan) > 0
    assert plan.step_seconds == pytest.approx(predict(plan).makespan_seconds)
    assert any("for the norm of gradients, its agreement and the optimizer" in line for line in explain(plan))
    quick = Inventory(devices=tuple(replace(one, memory_bytes_per_second=1e18) for one in inventory.devices))
    assert plan.step_seconds > make_plan(trained(random_graph(1, 14)), "id", quick, options).step_seconds
