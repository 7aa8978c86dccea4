"""What a person reads of a plan."""

from __future__ import annotations

from dataclasses import replace

from planner.plan.explain import explain
from tests.builders.plans import plan_of
from tests.builders.random_graphs import GraphWriter


def lines() -> str:
    writer = GraphWriter()
    weight = writer.state()
    encoded = writer.multiply(writer.input(), weight)
    decoded = writer.multiply(writer.input())
    graph = writer.graph(writer.multiply(decoded, encoded, weight))
    plan = plan_of(graph, (0, 1, 2))
    return "\n".join(explain(replace(plan, lower_bound_seconds=plan.bottleneck_seconds / 2)))


def test_the_head_says_what_was_planned_and_how_good_it_is() -> None:
    assert "random: 3 stages of 3 nodes, mode balanced, direct routing" in lines()
    assert "planned for batch = 3" in lines()
    assert "is the bottleneck" in lines()
    assert "this one is within 50.00% of optimal" in lines()


def test_each_stage_says_why_it_ends_what_it_holds_and_what_crosses() -> None:
    assert "stage 1 on node1/cpu: 1 node\n  ends because: stage 1 of a given split" in lines()
    assert "memory 432 bytes: states 0 bytes, activations 144 bytes, buffers 288 bytes" in lines()
    assert "node1/cpu is filled to 0%" in lines()
    assert "on entry 2 values live: 1 read here, 1 only passing by" in lines()
    assert "sends 1 value, 48 bytes, to stage 2: value 3" in lines()


def test_states_that_several_stages_hold_are_named() -> None:
    assert "held by several stages, 16 bytes each: block.0.weight in stage 0, block.0.weight in stage 2" in lines()
