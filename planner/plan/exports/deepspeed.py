"""DeepSpeed's PipelineModule.parts: where each stage's part of the list of layers begins."""

from __future__ import annotations

from itertools import accumulate

from planner.graph.ir import Graph
from planner.plan.exports.module_tree import runs_around_layers
from planner.plan.exports.ranks import layers_of_ranks, refuse_shared_devices, refuse_uneven_copies
from planner.plan.plan import Plan


def deepspeed_parts(graph: Graph, plan: Plan, *, nearest: bool = False) -> list[int]:
    """[0, 25, 66]: stage s runs layers parts[s] to before parts[s + 1] of the list that PipelineModule is made from.

    That list is what runs before the layers as one entry, each layer, and what runs after them as one entry; a
    sequence of layers alone has neither. Raises OptionsError where a cut is not between layers.
    """
    refuse_shared_devices(plan)
    refuse_uneven_copies(plan)
    runs_before, runs_after = runs_around_layers(graph)
    counts = list(layers_of_ranks(graph, plan, nearest=nearest, empty_first=runs_before, empty_last=runs_after))
    counts[0] += runs_before
    counts[-1] += runs_after
    return [0, *accumulate(counts)]
