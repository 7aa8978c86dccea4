"""vLLM's VLLM_PP_LAYER_PARTITION: how many layers each pipeline rank holds."""

from __future__ import annotations

from planner.graph.ir import Graph
from planner.plan.exports.module_tree import find_layers
from planner.plan.plan import Plan


def vllm_layer_partition(graph: Graph, plan: Plan, *, nearest: bool = False) -> str:
    """ "24,40". Raises OptionsError where a cut is not between layers."""
    counts = find_layers(graph, plan, nearest=nearest).counts(len(plan.stages))
    return ",".join(map(str, counts))
