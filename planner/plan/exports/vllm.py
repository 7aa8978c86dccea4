"""vLLM's VLLM_PP_LAYER_PARTITION: how many layers each pipeline rank holds."""

from __future__ import annotations

from planner.graph.ir import Graph
from planner.plan.exports.ranks import layers_of_ranks, refuse_shared_devices, refuse_uneven_copies
from planner.plan.plan import Plan


def vllm_layer_partition(graph: Graph, plan: Plan, *, nearest: bool = False) -> str:
    """ "24,40". Raises OptionsError where a cut is not between layers."""
    refuse_shared_devices(plan)
    refuse_uneven_copies(plan)
    return ",".join(map(str, layers_of_ranks(graph, plan, nearest=nearest)))
