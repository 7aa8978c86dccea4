"""What the papers say of ZB-H2, ZB-V and V-Half where all passes take as long: bubbles, and what is kept."""

from __future__ import annotations

from dataclasses import replace

import pytest

from planner.cost.inventory import Inventory
from planner.errors import Infeasible, OptionsError
from planner.partition.objective import V_SCHEDULES, Objective, PipelineSchedule, Training
from planner.partition.training.named_orders import stands_in_v
from planner.partition.training.pipeline_order import Pass
from planner.plan.invariants.memory import kept_microbatches
from planner.plan.options import BalancedMode, Mode, OptimalMode, PlanOptions, SingleMode
from planner.plan.pass_orders import pass_orders
from planner.plan.plan import Plan
from planner.planning import make_plan
from planner.schedule.check_training import check_training_schedule
from planner.schedule.simulate import simulate
from planner.schedule.timeline import Simulation
from planner.schedule.training import training_schedule
from tests.builders.plans import inventory_of
from tests.builders.random_graphs import GraphWriter
from tests.planner.schedule.steps import chain_plan, training_plan

H2, ZB_V, V_HALF = PipelineSchedule.ZERO_BUBBLE_H2, PipelineSchedule.ZERO_BUBBLE_V, PipelineSchedule.V_HALF


def there_and_back(num_devices: int) -> list[list[int]]:
    devices = [[device] for device in range(num_devices)]
    return [*devices, *reversed(devices)]


def v_plan(schedule: PipelineSchedule, num_devices: int, microbatches: int) -> Plan:
    """Of stages whose passes take a second each."""
    where = there_and_back(num_devices)
    return chain_plan([1.0] * len(where), schedule, microbatches=microbatches, devices=where)


def step(plan: Plan) -> Simulation:
    schedule = training_schedule(plan)
    check_training_schedule(schedule, plan)
    return simulate(plan, schedule, microbatches=schedule.microbatches)


def most_kept(plan: Plan) -> int:
    """On any device at once, of all its stages."""
    most = 0
    for order in pass_orders(plan).values():
        num_kept = 0
        for one in order:
            num_kept += {Pass.FORWARD: 1, Pass.BACKWARD_WEIGHT: -1, Pass.BACKWARD: -1}.get(one.kind, 0)
            most = max(most, num_kept)
    return most


@pytest.mark.parametrize("stages", [1, 2, 4, 8])
def test_h2_waits_for_nothing_between_its_first_pass_and_its_last(stages: int) -> None:
    plan = chain_plan([1.0] * stages, H2, microbatches=2 * stages + 1)
    simulation = step(plan)
    for device in simulation.devices:
        own = [event for event in simulation.events if event.device_id == device.device_id]
        assert own[-1].end_seconds - own[0].start_seconds == pytest.approx(device.busy_seconds)
    assert kept_microbatches(plan) == [2 * stages - 1] * stages


@pytest.mark.parametrize("devices", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("rounds", [2, 3, 4])
def test_v_keeps_what_1f1b_keeps_and_waits_for_the_first_microbatch_only(devices: int, rounds: int) -> None:
    plan = v_plan(ZB_V, devices, rounds * devices)
    assert step(plan).makespan_seconds == pytest.approx(6 * rounds * devices + devices - 1)
    assert most_kept(plan) == 2 * devices


@pytest.mark.parametrize("devices", [2, 3, 4, 8])
def test_v_half_keeps_half_as_much_and_has_half_the_bubble(devices: int) -> None:
    """1F1B of stages of two seconds has a bubble of 6 (devices - 1), and keeps 2 x devices half stages."""
    plan = v_plan(V_HALF, devices, 4 * devices)
    assert step(plan).makespan_seconds <= 6 * 4 * devices + 3 * (devices - 1)
    assert most_kept(plan) <= devices + 2


@pytest.mark.parametrize("schedule", [H2, *V_SCHEDULES])
@pytest.mark.parametrize("microbatches", [1, 2, 3, 7])
@pytest.mark.parametrize("devices", [1, 2, 5])
def test_few_microbatches_end_too(schedule: PipelineSchedule, devices: int, microbatches: int) -> None:
    assert step(v_plan(schedule, devices, microbatches)).makespan_seconds >= 6 * microbatches


@pytest.mark.parametrize("schedule", V_SCHEDULES)
def test_edges_that_skip_stages_and_have_several_readers(schedule: PipelineSchedule) -> None:
    pairs = [(0, 1), (0, 2), (0, 5), (1, 2), (1, 4), (2, 3), (3, 4), (3, 5), (4, 5)]
    step(training_plan(schedule, devices=there_and_back(3), pairs=pairs, microbatches=7, ties=[[0, 5], [1, 3]]))


@pytest.mark.parametrize("schedule", V_SCHEDULES)
@pytest.mark.parametrize(
    "where", [[[0]], [[0], [1]], [[0], [1], [0]], [[0], [1], [0], [1]], [[0], [0], [0], [0]], [[0, 1], [0, 1]]], ids=str
)
def test_stages_that_do_not_stand_in_a_v_are_refused(schedule: PipelineSchedule, where: list[list[int]]) -> None:
    plan = chain_plan([1.0] * len(where), schedule, devices=where)
    with pytest.raises(OptionsError, match=f"schedule {schedule.value} needs two stages on each device, in a V"):
        training_schedule(plan)


def planned(
    mode: Mode,
    schedule: PipelineSchedule = ZB_V,
    nodes: int = 12,
    objective: Objective | None = None,
    inventory: Inventory | None = None,
) -> Plan:
    writer = GraphWriter()
    value = writer.input()
    for index in range(nodes):
        value = writer.multiply(value, writer.state() if index % 2 else value)
    graph = writer.graph(value)
    graph = replace(graph, states=tuple(replace(state, requires_grad=True) for state in graph.states))
    training = Training(schedule=schedule, microbatches=6)
    options = PlanOptions(mode=mode, objective=objective or Objective.STEP_TIME, training=training)
    return make_plan(graph, "id", inventory or inventory_of(3), options)


@pytest.mark.parametrize("schedule", V_SCHEDULES)
@pytest.mark.parametrize(
    "mode", [OptimalMode(effort=0.1), BalancedMode(), OptimalMode(num_stages=4, effort=0.1)], ids=str
)
@pytest.mark.parametrize("objective", [Objective.STEP_TIME, Objective.THROUGHPUT, Objective.MEMORY])
def test_the_planner_places_stages_in_a_v(schedule: PipelineSchedule, mode: Mode, objective: Objective) -> None:
    plan = planned(mode, schedule, objective=objective)
    index = {device.id: position for position, device in enumerate(plan.inventory.devices)}
    assert stands_in_v([[index[name] for name in stage.device_ids] for stage in plan.stages])
    assert len(plan.stages) == (getattr(mode, "num_stages", 0) or len(plan.stages))
    assert step(plan).makespan_seconds == pytest.approx(plan.step_seconds)


@pytest.mark.parametrize("mode", [OptimalMode(num_stages=3), BalancedMode(num_stages=8)], ids=str)
def test_an_odd_number_of_stages_or_too_many_cannot_stand_in_a_v(mode: Mode) -> None:
    with pytest.raises(OptionsError, match="an even number up to 6"):
        planned(mode)


def test_a_mode_that_may_not_choose_says_what_is_needed() -> None:
    with pytest.raises(OptionsError, match="zero_bubble_v needs two stages on each device"):
        planned(SingleMode())


@pytest.mark.parametrize("schedule", V_SCHEDULES)
def test_where_no_stages_in_a_v_fit_it_says_what_is_lacking(schedule: PipelineSchedule) -> None:
    with pytest.raises(Infeasible, match=f"{schedule.value}.* has 16 bytes: .* are lacking") as error:
        planned(OptimalMode(), schedule, inventory=inventory_of(3, memory_bytes=16))
    assert int(error.value.metadata["needed_bytes"]) == 16 + int(error.value.metadata["lacking_bytes"])
