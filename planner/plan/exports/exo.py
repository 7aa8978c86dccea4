"""exo's shards: each rank's range of layers."""

from __future__ import annotations

from itertools import accumulate

from planner.graph.ir import Graph
from planner.plan.exports.module_tree import find_layers
from planner.plan.plan import Plan


def exo_shards(graph: Graph, plan: Plan, *, nearest: bool = False) -> list[dict[str, int]]:
    """Layers from start_layer to before end_layer, by rank. Raises OptionsError where a cut is not between layers."""
    counts = find_layers(graph, plan, nearest=nearest).counts(len(plan.stages))
    ends = list(accumulate(counts))
    return [
        {
            "device_rank": rank,
            "world_size": len(counts),
            "start_layer": end - count,
            "end_layer": end,
            "n_layers": ends[-1],
        }
        for rank, (count, end) in enumerate(zip(counts, ends, strict=True))
    ]
