"""Each invariant has a plan that breaks it, and only it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import pytest

from planner.cost.inventory import Inventory
from planner.errors import PlanInvariantError
from planner.graph.ir import Graph
from planner.partition.objective import Training
from planner.plan.options import BalancedMode, PlanOptions, Routing
from planner.plan.plan import Plan, StageEdge, StageMemory, TieGroup
from planner.plan.verify import verify_plan
from planner.planning import make_plan
from tests.builders.plans import inventory_of, plan_of
from tests.builders.random_graphs import GraphWriter
from tests.planner.plan.changed_plans import GRAPH, SPLIT, sound_plan, with_edge, with_entry, with_memory, with_stage


def on_small_devices(plan: Plan, memory_bytes: int) -> Plan:
    devices = tuple(replace(device, memory_bytes=memory_bytes) for device in plan.inventory.devices)
    return replace(plan, inventory=Inventory(devices=devices))


def reversed_values(edge: StageEdge) -> tuple[int, ...]:
    return tuple(reversed(edge.value_ids))


Break = Callable[[Plan], Plan]
BREAKS: dict[str, tuple[str, Break]] = {
    "of another graph": ("graph", lambda plan: replace(plan, num_nodes=7)),
    "no value for a symbol": ("symbols", lambda plan: replace(plan, symbol_values=())),
    "symbol out of bounds": ("symbols", lambda plan: replace(plan, symbol_values=(("batch", 65),))),
    "no stages": ("stage_indexes", lambda plan: replace(plan, stages=())),
    "misnumbered": ("stage_indexes", lambda plan: with_stage(plan, 1, index=2)),
    "node in two stages": ("cover", lambda plan: with_stage(plan, 1, node_ranges=((1, 4),))),
    "node in no stage": ("cover", lambda plan: with_stage(plan, 1, node_ranges=((3, 4),))),
    "stage without nodes": ("cover", lambda plan: with_stage(plan, 1, node_ranges=())),
    "ranges out of order": ("cover", lambda plan: with_stage(plan, 1, node_ranges=((3, 4), (2, 3)))),
    "range beyond the graph": ("cover", lambda plan: with_stage(plan, 2, node_ranges=((4, 9),))),
    "reads from a later stage": (
        "order",
        lambda plan: with_stage(with_stage(plan, 1, node_ranges=((3, 4),)), 2, node_ranges=((2, 3), (4, 6))),
    ),
    "edge backward": ("edges_forward", lambda plan: with_edge(plan, 0, source_stage=2, target_stage=1)),
    "edge to nowhere": ("edges_forward", lambda plan: with_edge(plan, 0, target_stage=9)),
    "edges out of order": ("edges_sorted", lambda plan: replace(plan, edges=plan.edges[::-1])),
    "edge twice": ("edges_sorted", lambda plan: replace(plan, edges=(plan.edges[0], *plan.edges))),
    "unknown device": ("devices", lambda plan: with_stage(plan, 1, device_ids=("gone",))),
    "no device": ("devices", lambda plan: with_stage(plan, 1, device_ids=())),
    "not a number": ("finite", lambda plan: with_stage(plan, 1, compute_seconds=math.nan)),
    "infinite": ("finite", lambda plan: replace(plan, latency_seconds=math.inf)),
    "negative": ("finite", lambda plan: with_stage(plan, 1, flops=-1.0)),
    "value missing from a table": (
        "liveness",
        lambda plan: with_stage(plan, 1, liveness=plan.stages[1].liveness[1:]),
    ),
    "table in another order": (
        "liveness",
        lambda plan: with_stage(plan, 1, liveness=plan.stages[1].liveness[::-1]),
    ),
    "not consumed": ("liveness", lambda plan: with_entry(plan, 1, 0, consumed=False)),
    "not bypassing": ("liveness", lambda plan: with_entry(plan, 1, 1, bypassing=False)),
    "another producer": ("liveness", lambda plan: with_entry(plan, 1, 1, producer_stage=-1)),
    "another shape": ("liveness", lambda plan: with_entry(plan, 1, 0, dims=(1, 2))),
    "another size": ("liveness", lambda plan: with_entry(plan, 1, 0, size_bytes=1)),
    "live value of no graph": ("liveness", lambda plan: with_entry(plan, 1, 0, value_id=99)),
    "output missing": ("outputs", lambda plan: with_stage(plan, 0, outputs=())),
    "output too many": ("outputs", lambda plan: with_stage(plan, 0, outputs=(6, *plan.stages[0].outputs))),
    "state missing": ("states", lambda plan: with_stage(plan, 2, states=())),
    "state of no graph": ("states", lambda plan: with_stage(plan, 2, states=("elsewhere.weight",))),
    "tie group missing": ("tie_groups", lambda plan: replace(plan, tie_groups=plan.tie_groups[1:])),
    "tie group renamed": (
        "tie_groups",
        lambda plan: replace(plan, tie_groups=(replace(plan.tie_groups[0], id=8), *plan.tie_groups[1:])),
    ),
    "tie groups with one id": (
        "tie_groups",
        lambda plan: replace(plan, tie_groups=tuple(replace(group, id=3) for group in plan.tie_groups)),
    ),
    "tie group of no tie": (
        "tie_groups",
        lambda plan: replace(
            plan, tie_groups=(*plan.tie_groups, TieGroup(id=9, members=(("block.2.weight", 0),), size_bytes=16))
        ),
    ),
    "edge missing": ("edges", lambda plan: replace(plan, edges=plan.edges[1:])),
    "edge carries too little": ("edges", lambda plan: with_edge(plan, 1, value_ids=())),
    "edge carries too much": ("edges", lambda plan: with_edge(plan, 1, value_ids=(*plan.edges[1].value_ids, 6))),
    "edge carries what no graph has": ("edges", lambda plan: with_edge(plan, 0, value_ids=(99,))),
    "edge of another size": ("edge_bytes", lambda plan: with_edge(plan, 1, size_bytes=1)),
    "too few state bytes": ("stage_memory", lambda plan: with_memory(plan, 1, state_bytes=1)),
    "too few activation bytes": ("stage_memory", lambda plan: with_memory(plan, 1, activation_bytes=1)),
    "too few buffer bytes": ("stage_memory", lambda plan: with_memory(plan, 1, buffer_bytes=1)),
    "device too small": ("device_memory", lambda plan: on_small_devices(plan, 200)),
    "communication unpaid": ("communication_seconds", lambda plan: with_stage(plan, 1, communication_seconds=0.0)),
    "another bottleneck": ("bottleneck_seconds", lambda plan: replace(plan, bottleneck_seconds=1.0)),
    "another latency": ("latency_seconds", lambda plan: replace(plan, latency_seconds=1.0)),
    "bound above the bottleneck": (
        "lower_bound",
        lambda plan: replace(plan, lower_bound_seconds=plan.bottleneck_seconds * 1.01),
    ),
}


@pytest.mark.parametrize("routing", Routing)
def test_a_sound_plan_passes(routing: Routing) -> None:
    verify_plan(sound_plan(routing), GRAPH)


@pytest.mark.parametrize("name", BREAKS)
def test_a_broken_plan_is_refused_by_the_name_of_what_it_breaks(name: str) -> None:
    invariant, breaks = BREAKS[name]
    with pytest.raises(PlanInvariantError) as refused:
        verify_plan(breaks(sound_plan()), GRAPH)
    assert refused.value.metadata["invariant"] == invariant
    assert refused.value.reason == "PLAN_INVARIANT"


@pytest.mark.parametrize("routing", Routing)
def test_a_stage_that_needs_no_value_hears_of_each_microbatch(routing: Routing) -> None:
    writer = GraphWriter()
    first = writer.multiply(writer.input())
    second = writer.multiply(writer.state())
    graph = writer.graph(second)
    plan = plan_of(graph, (0, 1), routing)
    assert first not in plan.stages[0].outputs
    assert plan.edges == (StageEdge(source_stage=0, target_stage=1, value_ids=(), size_bytes=0),)
    verify_plan(plan, graph)
    with pytest.raises(PlanInvariantError, match="'edges'"):
        verify_plan(replace(plan, edges=()), graph)


def test_a_plan_of_the_other_routing_is_refused() -> None:
    direct = sound_plan()
    relayed = replace(direct, options=replace(direct.options, routing=Routing.RELAY))
    with pytest.raises(PlanInvariantError, match="relay routing needs"):
        verify_plan(relayed, GRAPH)


def test_values_of_an_edge_in_another_order_are_refused() -> None:
    plan = sound_plan(Routing.RELAY)
    index = next(i for i, edge in enumerate(plan.edges) if len(edge.value_ids) > 1)
    with pytest.raises(PlanInvariantError, match="'edges'"):
        verify_plan(with_edge(plan, index, value_ids=reversed_values(plan.edges[index])), GRAPH)


def test_a_cut_between_a_write_and_an_earlier_view_is_refused() -> None:
    writer = GraphWriter()
    product = writer.multiply(writer.input())
    view = writer.view(product)
    writer.add_in_place(product, product)
    graph = writer.graph(writer.multiply(view))
    verify_plan(plan_of(graph, (0, 0, 0, 1)), graph)
    with pytest.raises(PlanInvariantError) as refused:
        verify_plan(plan_of(graph, (0, 0, 1, 1)), graph)
    assert refused.value.metadata["invariant"] == "in_place"


def test_two_owners_of_a_mutated_state_are_refused() -> None:
    writer = GraphWriter()
    running = writer.state(mutated=True)
    first = writer.multiply(writer.input(), running)
    graph = writer.graph(writer.multiply(first, running))
    verify_plan(plan_of(graph, (0, 0)), graph)
    with pytest.raises(PlanInvariantError) as refused:
        verify_plan(plan_of(graph, (0, 1)), graph)
    assert refused.value.metadata["invariant"] in {"in_place", "mutated_state"}


def test_stages_of_one_device_share_its_memory() -> None:
    plan = plan_of(GRAPH, SPLIT, device_of_stage=(0, 1, 0))
    peaks = [stage.memory.peak_bytes for stage in plan.stages]
    verify_plan(on_small_devices(plan, peaks[0] + peaks[2]), GRAPH)
    with pytest.raises(PlanInvariantError, match="device_memory"):
        verify_plan(on_small_devices(plan, peaks[0] + peaks[2] - 1), GRAPH)


def test_memory_is_what_counting_by_hand_gives() -> None:
    # Stage 0 gets both inputs, makes `first`, whose view leaves; a tensor is 3 x 4 floats, a state 4.
    plan = sound_plan()
    assert plan.stages[0].memory == StageMemory(state_bytes=16, activation_bytes=3 * 48, buffer_bytes=2 * 3 * 48)


@pytest.mark.slow
def test_a_large_plan_is_built_and_verified() -> None:
    writer = GraphWriter()
    values = [writer.input()]
    for _ in range(2000):
        values.append(writer.multiply(values[-1], values[max(0, len(values) - 400)]))
    graph = writer.graph(values[-1])
    plan = plan_of(graph, tuple(index * 16 // 2000 for index in range(2000)), Routing.RELAY)
    verify_plan(plan, graph)


def trained_plan() -> tuple[Plan, Graph]:
    graph = replace(GRAPH, states=tuple(replace(state, requires_grad=True) for state in GRAPH.states))
    options = PlanOptions(mode=BalancedMode(num_stages=2), training=Training(microbatches=4))
    return make_plan(graph, "id", inventory_of(2), options), graph


TRAINING_BREAKS: dict[str, tuple[str, Break]] = {
    "gradients counted too low": ("stage_memory", lambda plan: with_memory(plan, 0, gradient_bytes=0)),
    "optimizer counted too low": ("stage_memory", lambda plan: with_memory(plan, 0, optimizer_bytes=0)),
    "saved counted too low": ("stage_memory", lambda plan: with_memory(plan, 0, saved_bytes=1)),
    "no gradient comes back": ("edge_gradients", lambda plan: with_edge(plan, 0, gradient_value_ids=())),
    "no backward pass paid": ("bottleneck_seconds", lambda plan: with_stage(plan, 0, backward_seconds=7.0)),
    "a step shorter than its work": ("step_seconds", lambda plan: replace(plan, step_seconds=plan.bottleneck_seconds)),
    "no step": ("step_seconds", lambda plan: replace(plan, step_seconds=None)),
}


def test_a_sound_training_plan_passes() -> None:
    plan, graph = trained_plan()
    verify_plan(plan, graph)
    assert plan.tie_groups == () or plan.tie_groups[0].requires_grad


@pytest.mark.parametrize("name", TRAINING_BREAKS)
def test_a_broken_training_plan_is_refused(name: str) -> None:
    invariant, breaks = TRAINING_BREAKS[name]
    plan, graph = trained_plan()
    with pytest.raises(PlanInvariantError) as refused:
        verify_plan(breaks(plan), graph)
    assert refused.value.metadata["invariant"] == invariant
