"""A plan with recomputation as a plan without, of a graph in which each node that runs twice stands twice."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from planner.graph.expansion import expand
from planner.graph.ir import Graph
from planner.plan.assignment import assignment_of
from planner.plan.node_ranges import node_ranges
from planner.plan.plan import Plan


def expanded_plan(graph: Graph, plan: Plan) -> tuple[Graph, Plan, Sequence[int]]:
    """Both as they are where no stage runs another's nodes again. Node indexes are of the graph returned; last, of each
    of these nodes its index in the graph given."""
    if not any(stage.recomputed_ranges for stage in plan.stages):
        return graph, plan, range(len(graph.nodes))
    assignment = assignment_of(plan)
    expanded = expand(graph, assignment.stage_of_node, assignment.recomputed)
    ranges = node_ranges(expanded.stage_of_node, len(plan.stages))
    stages = tuple(replace(stage, node_ranges=ranges[stage.index], recomputed_ranges=()) for stage in plan.stages)
    return expanded.graph, replace(plan, num_nodes=len(expanded.graph.nodes), stages=stages), expanded.original_node
