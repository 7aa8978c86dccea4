"""Megatron-Core's --pipeline-model-parallel-layout: E embedding, t decoder layer, L loss; | between stages."""

from __future__ import annotations

from planner.graph.ir import Graph
from planner.plan.exports.module_tree import find_layers
from planner.plan.plan import Plan


def megatron_layout(graph: Graph, plan: Plan, *, nearest: bool = False) -> str:
    """ "Et*3|t*4|t*3L". Raises OptionsError where a cut is not between layers."""
    counts = find_layers(graph, plan, nearest=nearest).counts(len(plan.stages))
    stages = [_layers(count) for count in counts]
    stages[0] = f"E{stages[0]}"
    stages[-1] = f"{stages[-1]}L"
    return "|".join(stages)


def _layers(count: int) -> str:
    return "" if count == 0 else "t" if count == 1 else f"t*{count}"
