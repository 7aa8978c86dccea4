"""mlx-lm's pipeline: each rank's range of layers, the last layers on rank 0."""

from __future__ import annotations

from itertools import accumulate

from planner.graph.ir import Graph
from planner.plan.exports.module_tree import find_layers
from planner.plan.plan import Plan


def mlx_ranges(graph: Graph, plan: Plan, *, nearest: bool = False) -> list[dict[str, int]]:
    """Layers from start_idx to before end_idx, by rank; the plan's first stage is the last rank.

    Raises OptionsError where a cut is not between layers.
    """
    counts = find_layers(graph, plan, nearest=nearest).counts(len(plan.stages))
    ends = list(accumulate(counts))
    stages = zip(counts, ends, strict=True)
    ranges = [{"start_idx": end - count, "end_idx": end} for count, end in stages]
    return [{"rank": rank, **layer_range} for rank, layer_range in enumerate(reversed(ranges))]
