"""nanotron's pipeline ranks: of the embedding's block, of each decoder layer's, and of the blocks of the head."""

from __future__ import annotations

from planner.graph.ir import Graph
from planner.plan.exports.ranks import layers_of_ranks, refuse_shared_devices, refuse_uneven_copies
from planner.plan.plan import Plan


def nanotron_ranks(graph: Graph, plan: Plan, *, nearest: bool = False) -> dict[str, int | list[int]]:
    """What PipelineBlock.build_and_set_rank takes. Raises OptionsError where a cut is not between layers."""
    refuse_shared_devices(plan)
    refuse_uneven_copies(plan)
    counts = layers_of_ranks(graph, plan, nearest=nearest)
    decoder = [rank for rank, count in enumerate(counts) for _ in range(count)]
    return {"embedding": 0, "decoder": decoder, "head": len(counts) - 1}
