"""exo's shards: each rank's range of layers."""

from __future__ import annotations

from itertools import accumulate

from planner.graph.ir import Graph
from planner.plan.exports.ranks import layers_of_ranks, refuse_copies, refuse_shared_devices
from planner.plan.plan import Plan


def exo_shards(graph: Graph, plan: Plan, *, nearest: bool = False) -> list[dict[str, int]]:
    """Layers from start_layer to before end_layer, by rank: one at least, since exo wraps each rank's first and last.

    Raises OptionsError where a cut is not between layers, or a stage runs none.
    """
    refuse_shared_devices(plan)
    refuse_copies(plan)
    counts = layers_of_ranks(graph, plan, nearest=nearest, empty_first=False, empty_last=False)
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
