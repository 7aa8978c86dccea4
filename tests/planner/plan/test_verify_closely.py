"""Figures that are off by very little are refused too; invariants that others stand before are called directly."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import cache

import pytest

from planner.cost.inventory import Device, Inventory, LinkSpeed
from planner.errors import PlanInvariantError
from planner.graph.ir import Graph
from planner.partition.objective import NAMED_SCHEDULES, Activations, Objective, PipelineSchedule, Training
from planner.plan.invariants.gradients import find_gradients
from planner.plan.invariants.history import program_history
from planner.plan.invariants.memory import kept_microbatches
from planner.plan.invariants.replay import replay
from planner.plan.invariants.ties import check_ties
from planner.plan.options import BalancedMode, PlanOptions, Routing, ShapeBucket
from planner.plan.plan import Plan, StageMemory
from planner.plan.update import device_updates
from planner.plan.verify import verify_plan
from planner.planning import make_plan
from tests.builders.plans import plan_of
from tests.builders.random_graphs import GraphWriter
from tests.planner.plan.changed_plans import GRAPH, sound_plan, with_edge, with_entry, with_memory, with_stage

Break = Callable[[Plan], Plan]
LITTLE = 1e-7
BYTES_KEPT = ("state_bytes", "activation_bytes", "buffer_bytes", "gradient_bytes", "optimizer_bytes", "saved_bytes")


def refused(plan: Plan, graph: Graph = GRAPH) -> str:
    with pytest.raises(PlanInvariantError) as error:
        verify_plan(plan, graph)
    return str(error.value.metadata["invariant"])


def trained(graph: Graph) -> Graph:
    return replace(graph, states=tuple(replace(state, requires_grad=True) for state in graph.states))


def uneven(count: int) -> Inventory:
    """Each direction of each pair of devices has a speed of its own."""
    names = [f"d{index}" for index in range(count)]
    return Inventory(
        devices=tuple(Device(id=name, kind="cpu", host="h", memory_bytes=1 << 40) for name in names),
        links={
            (a, b): LinkSpeed(bytes_per_second=1e6 * (1 + 3 * i + j), latency_seconds=1e-4 * (1 + i + 3 * j))
            for i, a in enumerate(names)
            for j, b in enumerate(names)
            if i != j
        },
    )


@cache
def training_plan(
    schedule: PipelineSchedule = PipelineSchedule.ONE_F_ONE_B, activations: Activations = Activations.KEPT
) -> Plan:
    training = Training(schedule=schedule, microbatches=4, optimizer_bytes_per_parameter=12.0, activations=activations)
    options = PlanOptions(mode=BalancedMode(num_stages=3), training=training)
    return make_plan(trained(GRAPH), "id", uneven(3), options)


@pytest.mark.parametrize("factor", [1 - LITTLE, 1 + LITTLE])
@pytest.mark.parametrize("routing", Routing)
def test_seconds_that_are_a_little_off_are_refused(routing: Routing, factor: float) -> None:
    plan = sound_plan(routing)
    for stage in plan.stages:
        other = with_stage(plan, stage.index, communication_seconds=stage.communication_seconds * factor)
        assert refused(other) == "communication_seconds"
        if routing is Routing.DIRECT and stage.index == 0:
            # The second tower takes longer, beside it.
            continue
        other = with_stage(plan, stage.index, compute_seconds=stage.compute_seconds * (1 + 1e4 * (factor - 1)))
        assert refused(other) in {"bottleneck_seconds", "latency_seconds"}
    assert refused(replace(plan, bottleneck_seconds=plan.bottleneck_seconds * factor)) == "bottleneck_seconds"
    assert refused(replace(plan, latency_seconds=plan.latency_seconds * factor)) == "latency_seconds"


@pytest.mark.parametrize("change", [-1, 1])
def test_bytes_that_are_one_off_are_refused(change: int) -> None:
    plan = sound_plan()
    for index, edge in enumerate(plan.edges):
        assert refused(with_edge(plan, index, size_bytes=edge.size_bytes + change)) == "edge_bytes"
    for stage in plan.stages:
        for position, entry in enumerate(stage.liveness):
            other = with_entry(plan, stage.index, position, size_bytes=entry.size_bytes + change)
            assert refused(other) == "liveness"
    for position, group in enumerate(plan.tie_groups):
        groups = list(plan.tie_groups)
        groups[position] = replace(group, size_bytes=group.size_bytes + change)
        assert refused(replace(plan, tie_groups=tuple(groups))) == "tie_groups"


@pytest.mark.parametrize("field", BYTES_KEPT)
@pytest.mark.parametrize("schedule", [*NAMED_SCHEDULES, PipelineSchedule.BEST])
def test_no_part_of_a_stages_memory_may_be_one_byte_off(schedule: PipelineSchedule, field: str) -> None:
    plan, graph = training_plan(schedule), trained(GRAPH)
    verify_plan(plan, graph)
    for stage in plan.stages:
        size_bytes = getattr(stage.memory, field)
        assert refused(with_memory(plan, stage.index, **{field: size_bytes + 1}), graph) == "stage_memory"
        if size_bytes:
            assert refused(with_memory(plan, stage.index, **{field: size_bytes - 1}), graph) == "stage_memory"


@pytest.mark.parametrize("field", ["activation_bytes", "saved_bytes"])
def test_no_part_of_the_memory_of_a_stage_that_recomputes_may_be_one_byte_off(field: str) -> None:
    plan, graph = training_plan(PipelineSchedule.GPIPE, Activations.RECOMPUTED), trained(GRAPH)
    verify_plan(plan, graph)
    recomputing = [stage for stage in plan.stages if stage.recomputes_activations]
    assert recomputing
    for stage in recomputing:
        size_bytes = getattr(stage.memory, field)
        for change in (-1, 1):
            assert refused(with_memory(plan, stage.index, **{field: size_bytes + change}), graph) == "stage_memory"
        assert refused(with_stage(plan, stage.index, recomputes_activations=False), graph) == "stage_memory"
        saving = training_plan(PipelineSchedule.GPIPE)
        recomputing_plan = with_stage(saving, stage.index, recomputes_activations=True)
        assert refused(recomputing_plan, graph) == "recomputed_activations"


def test_memory_of_a_trained_stage_by_hand() -> None:
    # 1F1B: the last stage has one microbatch forward and not yet backward, the first of three has three.
    plan = training_plan()
    assert kept_microbatches(plan) == [3, 2, 1]
    assert kept_microbatches(sound_plan()) == [0, 0, 0]
    first = plan.stages[0]
    # Nodes 0 and 1: reads the left input, which has no gradient but is read by the multiplication; 48 bytes each of
    # input and product, the view is free. A weight of 4 floats, with its gradient and 12 bytes per parameter.
    assert first.node_ranges == ((0, 2),) or first.node_ranges == ((0, 1),)
    assert (first.memory.state_bytes, first.memory.gradient_bytes, first.memory.optimizer_bytes) == (16, 16, 48)
    assert first.memory.saved_bytes == 3 * (48 + 48)


NUMBERS: dict[str, Callable[[Plan, float], Plan]] = {
    "bottleneck_seconds": lambda plan, number: replace(plan, bottleneck_seconds=number),
    "latency_seconds": lambda plan, number: replace(plan, latency_seconds=number),
    "lower_bound_seconds": lambda plan, number: replace(plan, lower_bound_seconds=number),
    **{
        name: lambda plan, number, name=name: with_stage(plan, 1, **{name: number})  # type: ignore[misc]
        for name in ("compute_seconds", "communication_seconds", "backward_seconds", "flops")
    },
    **{
        name: lambda plan, number, name=name: with_memory(plan, 1, **{name: number})  # type: ignore[misc]
        for name in BYTES_KEPT
    },
}


@pytest.mark.parametrize("number", [-1.0, math.inf, math.nan])
@pytest.mark.parametrize("name", NUMBERS)
def test_no_number_may_be_negative_or_none(name: str, number: float) -> None:
    assert refused(NUMBERS[name](sound_plan(), number)) == "finite"


def test_copies_on_one_device_are_refused() -> None:
    assert refused(with_stage(sound_plan(), 1, device_ids=("node1/cpu",) * 2)) == "devices"


@pytest.mark.parametrize("value", [0, 65])
def test_a_dimension_outside_of_its_bounds_is_refused(value: int) -> None:
    assert refused(replace(sound_plan(), symbol_values=(("batch", value),))) == "symbols"


def bucketed() -> Plan:
    buckets = tuple(ShapeBucket(symbol_values=(("batch", size),)) for size in (2, 5))
    return make_plan(GRAPH, "id", uneven(2), PlanOptions(mode=BalancedMode(num_stages=2), buckets=buckets))


def test_a_plan_for_buckets_stands_at_one_of_them() -> None:
    plan = bucketed()
    verify_plan(plan, GRAPH)
    assert plan.symbol_values == (("batch", 5),)
    assert {entry.size_bytes for stage in plan.stages for entry in stage.liveness} == {5 * 4 * 4}
    assert refused(replace(plan, symbol_values=(("batch", 3),))) == "symbols"


OBJECTIVES = [
    (Objective.THROUGHPUT, lambda plan: plan.bottleneck_seconds),
    (Objective.LATENCY, lambda plan: plan.latency_seconds),
    (Objective.STEP_TIME, lambda plan: plan.step_seconds),
    (
        Objective.MEMORY,
        lambda plan: max(plan.device_peak_bytes[device.id] / device.memory_bytes for device in plan.inventory.devices),
    ),
]


@pytest.mark.parametrize(("objective", "value_of"), OBJECTIVES, ids=[objective.value for objective, _ in OBJECTIVES])
def test_a_bound_may_reach_the_objective_and_not_pass_it(
    objective: Objective, value_of: Callable[[Plan], float]
) -> None:
    graph = trained(GRAPH)
    plan = training_plan()
    plan = replace(plan, options=replace(plan.options, objective=objective))
    value = value_of(plan)
    assert plan.objective_value == value
    verify_plan(replace(plan, lower_bound_seconds=value), graph)
    assert refused(replace(plan, lower_bound_seconds=value * (1 + LITTLE)), graph) == "lower_bound"


def test_the_gap_is_the_share_by_which_the_objective_may_be_too_high() -> None:
    plan = sound_plan()
    assert replace(plan, lower_bound_seconds=None).gap is None
    assert replace(plan, lower_bound_seconds=plan.bottleneck_seconds * 0.75).gap == pytest.approx(0.25)
    assert replace(plan, lower_bound_seconds=plan.bottleneck_seconds * (1 + 1e-12)).gap == 0.0
    assert replace(plan, lower_bound_seconds=0.0, bottleneck_seconds=0.0).gap == 0.0


def test_a_step_is_no_shorter_than_the_work_of_its_most_loaded_device() -> None:
    plan, graph = training_plan(), trained(GRAPH)
    least = 4 * plan.bottleneck_seconds + max(update.both for update in device_updates(plan).values())
    assert plan.step_seconds is not None
    assert plan.step_seconds > least
    verify_plan(replace(plan, step_seconds=least), graph)
    assert refused(replace(plan, step_seconds=least * (1 - LITTLE)), graph) == "step_seconds"
    assert refused(replace(plan, step_seconds=math.inf), graph) == "step_seconds"
    assert refused(replace(sound_plan(), step_seconds=1.0)) == "step_seconds"


def test_gradients_and_backward_passes_are_only_where_something_is_trained_before() -> None:
    writer = GraphWriter()
    first = writer.multiply(writer.input())
    second = writer.multiply(first, writer.state())
    graph = trained(writer.graph(writer.multiply(second)))
    options = PlanOptions(mode=BalancedMode(num_stages=3), training=Training(microbatches=2))
    plan = make_plan(graph, "id", uneven(3), options)
    assert [edge.gradient_value_ids for edge in plan.edges] == [(), (second,)]
    assert [bool(stage.backward_seconds) for stage in plan.stages] == [False, True, True]
    assert refused(with_edge(plan, 0, gradient_value_ids=(first,)), graph) == "edge_gradients"
    assert refused(with_edge(plan, 1, gradient_value_ids=()), graph) == "edge_gradients"
    assert refused(with_stage(plan, 0, backward_seconds=1e-12), graph) == "backward_seconds"
    assert refused(with_stage(sound_plan(), 0, backward_seconds=1e-12)) == "backward_seconds"


def test_what_is_written_through_a_view_has_a_gradient_that_comes_back() -> None:
    writer = GraphWriter()
    target = writer.multiply(writer.input())
    writer.add_in_place(writer.view(target), writer.state())
    graph = trained(writer.graph(writer.multiply(target)))
    options = PlanOptions(mode=BalancedMode(num_stages=2), training=Training(microbatches=2))
    plan = make_plan(graph, "id", uneven(2), options)
    assert [edge.gradient_value_ids for edge in plan.edges] == [(target,)]
    assert refused(with_edge(plan, 0, gradient_value_ids=()), graph) == "edge_gradients"


def test_an_input_has_no_gradient_that_comes_back_even_if_a_trained_state_is_added_to_it() -> None:
    writer = GraphWriter()
    batch, weight = writer.input(), writer.state()
    first = writer.multiply(writer.input(), weight)
    written = writer.add_in_place(batch, weight)
    graph = trained(writer.graph(writer.multiply(written, first)))
    options = PlanOptions(mode=BalancedMode(num_stages=2), training=Training(microbatches=2))
    plan = make_plan(graph, "id", uneven(2), options)
    assert [(edge.value_ids, edge.gradient_value_ids) for edge in plan.edges] == [((batch, first), (first,))]
    assert refused(with_edge(plan, 0, gradient_value_ids=(batch, first)), graph) == "edge_gradients"


def test_an_edge_of_no_value_is_no_way_for_a_lone_batch() -> None:
    writer = GraphWriter()
    writer.multiply(writer.input())
    graph = writer.graph(writer.multiply(writer.state()))
    plan = plan_of(graph, (0, 1))
    assert [edge.value_ids for edge in plan.edges] == [()]
    assert plan.latency_seconds == max(stage.compute_seconds for stage in plan.stages)
    verify_plan(plan, graph)
    together = sum(stage.compute_seconds for stage in plan.stages)
    assert refused(replace(plan, latency_seconds=together), graph) == "latency_seconds"


def test_gradients_are_found_anew_as_they_were_planned() -> None:
    writer = GraphWriter()
    weight, batch = writer.state(), writer.input()
    product = writer.multiply(batch)
    written = writer.add_in_place(product, weight)
    graph = trained(writer.graph(writer.multiply(written)))
    plan = plan_of(graph, (0, 0, 0))
    history = program_history(graph)
    assert find_gradients(plan, graph, history).values == frozenset()
    training = replace(plan, options=replace(plan.options, training=Training()))
    gradients = find_gradients(training, graph, history)
    assert gradients.values == {weight, product, written, graph.nodes[-1].outputs[0]}
    assert gradients.nodes == {0, 1, 2}
    assert gradients.trained_tokens == {weight}


def test_a_group_of_states_that_nobody_trains_is_not_summed() -> None:
    plan = sound_plan()
    groups = tuple(replace(group, requires_grad=True) for group in plan.tie_groups)
    assert refused(replace(plan, tie_groups=groups)) == "tie_groups"
    plan = training_plan()
    groups = tuple(replace(group, requires_grad=False) for group in plan.tie_groups)
    assert groups
    assert refused(replace(plan, tie_groups=groups), trained(GRAPH)) == "tie_groups"


def test_a_written_state_has_one_owner() -> None:
    writer = GraphWriter()
    running = writer.state(mutated=True)
    graph = writer.graph(writer.multiply(writer.multiply(writer.input(), running), running))
    plan = plan_of(graph, (0, 1))
    plan = replace(plan, stages=tuple(replace(stage, states=("block.0.weight",)) for stage in plan.stages))
    with pytest.raises(PlanInvariantError) as error:
        check_ties(plan, graph, program_history(graph), {value.id: 16 for value in graph.values})
    assert error.value.metadata["invariant"] == "mutated_state"


REPLAYS: dict[str, tuple[str, Break]] = {
    "an output that the stage does not have": ("outputs", lambda plan: with_stage(plan, 0, outputs=(99,))),
    "a value sent that the sender does not have": ("edges", lambda plan: with_edge(plan, 0, value_ids=(99,))),
    "a value brought twice": (
        "edges",
        lambda plan: with_edge(plan, 2, value_ids=plan.edges[2].value_ids * 2),
    ),
    "a value read that nothing brings": ("edges", lambda plan: with_edge(plan, 0, value_ids=())),
    "a value returned that nothing brings": ("outputs", lambda plan: with_edge(plan, 1, value_ids=())),
}


def bypassed() -> tuple[Plan, Graph]:
    """Edges 0 to 1, 0 to 2 and 1 to 2; the second carries what is returned and, in stage 2, not read."""
    writer = GraphWriter()
    first, returned = writer.multiply(writer.input()), writer.multiply(writer.input())
    second = writer.multiply(first)
    graph = writer.graph(writer.multiply(second), returned)
    return plan_of(graph, (0, 0, 1, 2)), graph


@pytest.mark.parametrize("name", REPLAYS)
def test_running_the_stages_on_names_finds_what_lacks(name: str) -> None:
    invariant, breaks = REPLAYS[name]
    plan, graph = bypassed()
    replay(plan, graph, program_history(graph))
    with pytest.raises(PlanInvariantError) as error:
        replay(breaks(plan), graph, program_history(graph))
    assert error.value.metadata["invariant"] == invariant


def test_running_the_stages_on_names_finds_writes_that_are_missed() -> None:
    writer = GraphWriter()
    product = writer.multiply(writer.input())
    writer.add_in_place(product, product)
    graph = writer.graph(writer.multiply(product))
    sound = plan_of(graph, (0, 0, 1))
    replay(sound, graph, program_history(graph))
    early = with_stage(with_stage(sound, 0, node_ranges=((0, 1),)), 1, node_ranges=((2, 3),))
    with pytest.raises(PlanInvariantError, match=r"after the writes \[\], the unsplit program after \[1\]"):
        replay(early, graph, program_history(graph))
    returned = writer.graph(product)
    early = with_stage(with_stage(plan_of(returned, (0, 0, 1)), 0, node_ranges=((0, 1),)), 1, node_ranges=())
    with pytest.raises(PlanInvariantError, match="returns value 2 without what was written"):
        replay(early, returned, program_history(returned))


def test_peak_memory_is_the_sum_of_its_parts() -> None:
    memory = StageMemory(
        state_bytes=1,
        activation_bytes=10,
        buffer_bytes=100,
        gradient_bytes=1000,
        optimizer_bytes=10**4,
        saved_bytes=10**5,
    )
    assert memory.peak_bytes == 111_111
    plan = sound_plan()
    shared = with_stage(plan, 2, device_ids=("node0/cpu", "node1/cpu"))
    peaks = [stage.memory.peak_bytes for stage in plan.stages]
    assert shared.device_peak_bytes == {
        "node0/cpu": peaks[0] + peaks[2],
        "node1/cpu": peaks[1] + peaks[2],
        "node2/cpu": 0,
    }
