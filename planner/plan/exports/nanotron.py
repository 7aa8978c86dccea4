"""nanotron's pipeline ranks: of the embedding's block, of each decoder layer's, and of the blocks of the head."""

from __future__ import annotations

from planner.graph.ir import Graph
from planner.plan.exports.module_tree import find_layers
from planner.plan.plan import Plan


def nanotron_ranks(graph: Graph, plan: Plan, *, nearest: bool = False) -> dict[str, int | list[int]]:
    """What PipelineBlock.build_and_set_rank takes. Raises OptionsError where a cut is not between layers."""
    layers = find_layers(graph, plan, nearest=nearest)
    return {"embedding": 0, "decoder": list(layers.stage_of_layer), "head": len(plan.stages) - 1}
