"""Plans whose order of passes was searched: sound, simulated, never slower than a named schedule, verified."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache

import pytest

from planner.cost.inventory import Device, Inventory, LinkSpeed
from planner.errors import OptionsError, PlanInvariantError
from planner.graph.ir import Graph
from planner.partition.objective import NAMED_SCHEDULES, Objective, PipelineSchedule, Training
from planner.plan.invariants.memory import kept_microbatches
from planner.plan.invariants.pass_orders import check_pass_orders
from planner.plan.options import BalancedMode, Mode, OptimalMode, PlanOptions
from planner.plan.plan import PassOrder, Plan
from planner.planning import make_plan
from planner.schedule.check_training import check_training_schedule
from planner.schedule.reschedule import with_training
from planner.schedule.simulate import simulate
from planner.schedule.training import training_schedule
from tests.builders.random_graphs import GraphWriter, random_graph
from tests.random_examples import random_seeds

BEST = PipelineSchedule.BEST
ENOUGH = 1 << 40


def inventory(memory_bytes: int = ENOUGH) -> Inventory:
    return Inventory(
        devices=tuple(
            Device(id=f"d{index}", kind=("cpu", "l4")[index % 2], host="h", memory_bytes=memory_bytes)
            for index in range(3)
        ),
        default_link=LinkSpeed(bytes_per_second=1e9, latency_seconds=1e-6),
    )


def trained(graph: Graph) -> Graph:
    return replace(graph, states=tuple(replace(state, requires_grad=True) for state in graph.states))


def planned(graph: Graph, mode: Mode, schedule: PipelineSchedule = BEST, memory_bytes: int = ENOUGH) -> Plan:
    options = PlanOptions(
        mode=mode, objective=Objective.STEP_TIME, training=Training(schedule=schedule, microbatches=4)
    )
    return make_plan(trained(graph), "id", inventory(memory_bytes), options)


@cache
def best_plan() -> Plan:
    writer = GraphWriter()
    value = writer.input()
    for _ in range(6):
        value = writer.multiply(value, writer.state())
    return planned(writer.graph(value), BalancedMode(num_stages=3))


def seconds_of(plan: Plan) -> float:
    """Where edges hold as many messages as there are microbatches: devices with several stages may send far ahead."""
    schedule = training_schedule(plan)
    check_training_schedule(schedule, plan, capacity=schedule.microbatches)
    return simulate(plan, schedule, microbatches=schedule.microbatches).makespan_seconds


@pytest.mark.slow
@pytest.mark.fuzz
def test_plans_of_random_programs_take_what_they_say_and_never_more_than_a_named_schedule() -> None:
    compared = 0
    for seed in random_seeds(6):
        mode = [BalancedMode(num_stages=seed % 4), OptimalMode(free=True, effort=0.05)][seed % 2]
        try:
            plan = planned(random_graph(seed, 14), mode)
        except OptionsError:
            # Nothing to train, or fewer cuts than asked for.
            continue
        assert plan.step_seconds == pytest.approx(seconds_of(plan), rel=1e-9)
        for schedule in NAMED_SCHEDULES:
            other = with_training(plan, replace(plan.options.training or Training(), schedule=schedule))
            assert plan.step_seconds <= seconds_of(other) * (1 + 1e-9)
        compared += 1
    assert compared >= 3


def test_what_memory_keeps_apart_the_order_keeps_apart() -> None:
    plan = best_plan()
    assert max(kept_microbatches(plan)) > 1
    tight = max(stage.memory.peak_bytes - stage.memory.saved_bytes // 2 for stage in plan.stages)
    devices = tuple(replace(device, memory_bytes=tight) for device in plan.inventory.devices)
    small = replace(plan, inventory=replace(plan.inventory, devices=devices))
    training = replace(plan.options.training or Training(), microbatches=5)
    rescheduled = with_training(small, training)
    for stage, before, after in zip(plan.stages, kept_microbatches(plan), kept_microbatches(rescheduled), strict=True):
        resting = stage.memory.peak_bytes - stage.memory.saved_bytes
        assert resting + after * stage.memory.saved_bytes // before <= tight
    assert simulate(rescheduled, training_schedule(rescheduled), microbatches=5).makespan_seconds > 0


def test_a_plan_keeps_its_order_and_other_schedules_have_none() -> None:
    plan = best_plan()
    assert plan.options.training is not None
    assert with_training(plan, plan.options.training) == plan
    named = with_training(plan, Training(schedule=PipelineSchedule.GPIPE, microbatches=4))
    assert named.pass_orders == ()
    again = with_training(named, Training(schedule=BEST, microbatches=4))
    assert {order.device_id for order in again.pass_orders} == {order.device_id for order in plan.pass_orders}


def with_order(plan: Plan, change: Callable[[PassOrder], PassOrder]) -> Plan:
    first, *others = plan.pass_orders
    return replace(plan, pass_orders=(change(first), *others))


BREAKS: dict[str, Callable[[Plan], Plan]] = {
    "no order": lambda plan: replace(plan, pass_orders=()),
    "a device lacks": lambda plan: replace(plan, pass_orders=plan.pass_orders[1:]),
    "a device twice": lambda plan: replace(plan, pass_orders=(*plan.pass_orders, plan.pass_orders[0])),
    "a device that runs nothing": lambda plan: with_order(plan, lambda order: replace(order, device_id="d9")),
    "a pass lacks": lambda plan: with_order(plan, lambda order: replace(order, steps=order.steps[1:])),
    "a pass twice": lambda plan: with_order(plan, lambda order: replace(order, steps=(*order.steps, order.steps[0]))),
    "a schedule that has a rule": lambda plan: replace(
        plan, options=replace(plan.options, training=Training(microbatches=4))
    ),
    "inference": lambda plan: replace(
        plan, options=replace(plan.options, objective=Objective.THROUGHPUT, training=None)
    ),
}


@pytest.mark.parametrize("name", BREAKS)
def test_an_order_that_does_not_belong_to_the_plan_is_refused(name: str) -> None:
    check_pass_orders(best_plan())
    with pytest.raises(PlanInvariantError) as error:
        check_pass_orders(BREAKS[name](best_plan()))
    assert error.value.metadata["invariant"] == "pass_orders"
