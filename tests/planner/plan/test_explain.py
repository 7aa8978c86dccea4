"""What a person reads of a plan."""

from __future__ import annotations

from dataclasses import replace

import pytest

from planner.cost.sources import CostSource, RateSource
from planner.partition.objective import Objective, Training
from planner.plan.explain import CutAlternative, explain
from planner.plan.plan import Plan, StageMemory
from tests.builders.plans import plan_of
from tests.builders.random_graphs import GraphWriter
from tests.planner.plan.changed_plans import sound_plan


def plan() -> Plan:
    writer = GraphWriter()
    weight = writer.state()
    encoded = writer.multiply(writer.input(), weight)
    decoded = writer.multiply(writer.input())
    graph = writer.graph(writer.multiply(decoded, encoded, weight))
    example = plan_of(graph, (0, 1, 2))
    return replace(example, lower_bound_seconds=example.bottleneck_seconds / 2)


def lines(changed: Plan | None = None, *alternatives: CutAlternative) -> str:
    return "\n".join(explain(changed or plan(), alternatives))


def head(changed: Plan) -> list[str]:
    return [line for line in explain(changed) if not line.startswith((" ", "stage ", "held "))]


def memory(**sizes: int) -> StageMemory:
    return replace(StageMemory(state_bytes=0, activation_bytes=0, buffer_bytes=0), **sizes)


def with_stages(whole: Plan, **changes: object) -> Plan:
    return replace(whole, stages=tuple(replace(stage, **changes) for stage in whole.stages))  # type: ignore[arg-type]


def test_the_head_says_what_was_planned_and_how_good_it_is() -> None:
    assert "random: 3 stages of 3 nodes, mode balanced, direct routing" in lines()
    assert "planned for batch = 3" in lines()
    assert "is the bottleneck" in lines()
    assert "this one is within 50.00% of optimal" in lines()


def test_a_graph_without_a_name_is_called_by_its_id() -> None:
    assert lines(replace(plan(), graph_name="")).startswith("graph-id: 3 stages")


def test_where_seconds_come_from_is_said_for_each_kind() -> None:
    source = CostSource(device_kind="cpu", num_measured=2, num_nodes=3, rates=RateSource.ROOFLINE)
    assert f"seconds of cpu: {source.text()}" in lines(replace(plan(), cost_sources=(source,)))


def test_the_busiest_device_carries_the_most_of_all_its_stages() -> None:
    heavy = with_stages(plan(), compute_seconds=1.0, communication_seconds=0.0)
    first, second, third = heavy.stages
    heaviest = replace(third, compute_seconds=1.5)
    shared = replace(heavy, stages=(first, replace(second, device_ids=first.device_ids), heaviest))
    assert "(node0/cpu is the bottleneck)" in lines(shared)
    # A copy takes its share: two devices at 0.9 each, and one at 1.
    third = replace(third, compute_seconds=1.8, device_ids=("node1/cpu", "node2/cpu"))
    alone = replace(heavy, stages=(first, replace(second, compute_seconds=0.0), third))
    assert "(node0/cpu is the bottleneck)" in lines(alone)
    receiving = replace(third, communication_seconds=0.3)
    assert "(node1/cpu is the bottleneck)" in lines(replace(alone, stages=(*alone.stages[:2], receiving)))
    back = replace(third, backward_seconds=0.3)
    assert "(node1/cpu is the bottleneck)" in lines(replace(alone, stages=(*alone.stages[:2], back)))


@pytest.mark.parametrize(
    ("objective", "bound", "said"),
    [
        (Objective.THROUGHPUT, 1.0, "objective throughput: no plan that the mode allows does better than 1 s; "),
        (Objective.LATENCY, 2.0, "objective latency: no plan that the mode allows does better than 2 s; "),
        (Objective.STEP_TIME, 3.0, "objective step_time: no plan that the mode allows does better than 3 s; "),
        (
            Objective.MEMORY,
            0.125,
            "objective memory: no plan that the mode allows does better than 12.5% of the fullest device; ",
        ),
    ],
)
def test_the_bound_is_said_in_the_objectives_own_words(objective: Objective, bound: float, said: str) -> None:
    options = replace(plan().options, objective=objective, training=Training())
    example = replace(plan(), options=options, step_seconds=4.0, latency_seconds=4.0, bottleneck_seconds=4.0)
    assert any(line.startswith(said) for line in head(replace(example, lower_bound_seconds=bound)))
    assert "a training step takes 4 s" in head(example)


def test_a_plan_at_its_bound_is_optimal_and_without_one_nothing_is_said() -> None:
    example = plan()
    assert lines(replace(example, lower_bound_seconds=example.bottleneck_seconds)).count("this one is optimal") == 1
    assert "no plan that the mode allows" not in lines(replace(example, lower_bound_seconds=None))


def test_each_stage_says_why_it_ends_what_it_holds_and_what_crosses() -> None:
    assert "stage 1 on node1/cpu: 1 node\n  ends because: stage 1 of a given split" in lines()
    assert "memory 288 bytes: states 0 bytes, activations 96 bytes, buffers 192 bytes" in lines()
    assert "node1/cpu is filled to 0%" in lines()
    assert "on entry 2 values live: 1 read here, 1 only passing by" in lines()
    assert "sends 1 value, 48 bytes, to stage 2: value 3" in lines()


def test_what_leaves_before_a_pass_is_said() -> None:
    towers = sound_plan()
    assert "to stage 1 before its pass: " in lines(towers)
    assert "to stage 2: " in lines(towers)
    assert "before its pass" not in lines(replace(towers, options=replace(towers.options, training=Training())))


def test_the_load_is_the_sum_of_what_it_lists() -> None:
    example = with_stages(plan(), compute_seconds=1.0, communication_seconds=0.5)
    assert "  load 1.5 s: compute 1 s, communication 500 ms" in lines(example)
    example = with_stages(example, backward_seconds=2.0)
    assert "  load 3.5 s: compute 1 s, backward 2 s, communication 500 ms" in lines(example)
    example = with_stages(example, delivery_seconds=0.25)
    assert "  load 3.75 s: compute 1 s, backward 2 s, communication 500 ms, deliveries 250 ms" in lines(example)


def test_what_training_keeps_is_listed_and_stages_of_a_device_fill_it_together() -> None:
    example = with_stages(
        plan(), memory=memory(state_bytes=100, gradient_bytes=200, optimizer_bytes=300, saved_bytes=400)
    )
    assert (
        "memory 1000 bytes: states 100 bytes, gradients 200 bytes, optimizer 300 bytes, saved for backward 400 bytes, "
        "activations 0 bytes, buffers 0 bytes"
    ) in lines(example)
    small = tuple(replace(device, memory_bytes=4000) for device in example.inventory.devices)
    example = replace(example, inventory=replace(example.inventory, devices=small))
    example = replace(
        example, stages=(*example.stages[:2], replace(example.stages[2], device_ids=("node0/cpu", "node2/cpu")))
    )
    assert "; node0/cpu is filled to 50%\n" in lines(example)
    assert "; node0/cpu is filled to 50%, node2/cpu is filled to 25%" in lines(example)
    assert "stage 2 on node0/cpu, node2/cpu, in turn: 1 node" in lines(example)


def test_at_most_four_values_of_an_edge_are_named() -> None:
    writer = GraphWriter()
    products = [writer.multiply(writer.input()) for _ in range(5)]
    graph = writer.graph(writer.multiply(*products))
    values = tuple(replace(value, name=f"v{value.id}") for value in graph.values)
    text = lines(plan_of(replace(graph, values=values), (0,) * 5 + (1,)))
    assert "sends 5 values, 240 bytes, to stage 1: v2, v4, v6, v8, …" in text


@pytest.mark.parametrize(
    ("objective", "promise"),
    [
        (Objective.THROUGHPUT, "a result every 250 ms"),
        (Objective.LATENCY, "a lone batch takes 250 ms"),
        (Objective.STEP_TIME, "a step takes 250 ms"),
        (Objective.MEMORY, "the fullest device is filled to 25.0%"),
    ],
)
def test_the_next_best_cut_is_said_at_the_stage_that_it_ends(objective: Objective, promise: str) -> None:
    example = replace(
        plan(), options=replace(plan().options, objective=objective, training=Training()), step_seconds=1.0
    )
    text = lines(example, CutAlternative(cut_index=1, after="encoder.3", value=0.25, change=0.125))
    expected = f"next best, with the other cuts where they are: after encoder.3, {promise} (+12.5%)"
    assert f"  ends because: stage 1 of a given split\n  {expected}\n" in text
    assert text.count("next best") == 1


def test_a_cut_without_another_place_says_so() -> None:
    text = lines(None, CutAlternative(cut_index=0, after="", value=0.0, change=0.0))
    assert "  no other place for this cut fits memory, with the other cuts where they are" in text


def test_what_runs_again_is_listed_as_ranges_up_to_six() -> None:
    ranges = tuple((10 * index, 10 * index + 1 + index % 2) for index in range(7))
    example = plan()
    again = replace(example.stages[2], recomputed_ranges=ranges)
    text = lines(replace(example, stages=(*example.stages[:2], again)))
    assert "runs 10 nodes of earlier stages again: 0, 10 to 11, 20, 30 to 31, 40, 50 to 51, …" in text


def test_states_that_several_stages_hold_are_named() -> None:
    assert "held by several stages, 16 bytes each: block.0.weight in stage 0, block.0.weight in stage 2" in lines()
