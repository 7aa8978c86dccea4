"""A sound plan of a small program, and plans that differ from one in a single field."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from planner.graph.ir import Graph
from planner.plan.options import Routing
from planner.plan.plan import Plan
from tests.builders.plans import plan_of
from tests.builders.random_graphs import GraphWriter


def two_towers() -> Graph:
    """Nodes 0 to 5: a tower over each input, a tied weight on both, a join; the first tower's output bypasses."""
    writer = GraphWriter()
    left, right = writer.input(), writer.input()
    tied = writer.state(tie_group=3), writer.state(tie_group=3)
    own = writer.state()
    first = writer.multiply(left, tied[0])
    seen = writer.view(first)
    second = writer.multiply(right, own)
    third = writer.multiply(second, tied[1])
    joined = writer.multiply(third, seen)
    last = writer.multiply(joined, own)
    return writer.graph(last, seen)


GRAPH = two_towers()
SPLIT = (0, 0, 1, 1, 2, 2)


def sound_plan(routing: Routing = Routing.DIRECT) -> Plan:
    return plan_of(GRAPH, SPLIT, routing)


def with_stage(plan: Plan, at: int, /, **changes: Any) -> Plan:
    changed = replace(plan.stages[at], **changes)
    return replace(plan, stages=(*plan.stages[:at], changed, *plan.stages[at + 1 :]))


def with_entry(plan: Plan, index: int, position: int, **changes: Any) -> Plan:
    table = list(plan.stages[index].liveness)
    table[position] = replace(table[position], **changes)
    return with_stage(plan, index, liveness=tuple(table))


def with_edge(plan: Plan, index: int, **changes: Any) -> Plan:
    changed = replace(plan.edges[index], **changes)
    return replace(plan, edges=(*plan.edges[:index], changed, *plan.edges[index + 1 :]))


def with_memory(plan: Plan, index: int, **changes: int) -> Plan:
    return with_stage(plan, index, memory=replace(plan.stages[index].memory, **changes))
