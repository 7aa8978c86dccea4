"""DeepSpeed's PipelineModule.parts: where each stage's part of the list of layers begins."""

from __future__ import annotations

from itertools import accumulate

from planner.graph.ir import Graph
from planner.plan.exports.module_tree import find_layers, runs_around_layers
from planner.plan.plan import Plan


def deepspeed_parts(graph: Graph, plan: Plan, *, nearest: bool = False) -> list[int]:
    """[0, 25, 66]: stage s runs layers parts[s] to before parts[s + 1] of the list that PipelineModule is made from.

    That list is what runs before the layers as one entry, each layer, and what runs after them as one entry; a
    sequence of layers alone has neither. Raises OptionsError where a cut is not between layers.
    """
    counts = list(find_layers(graph, plan, nearest=nearest).counts(len(plan.stages)))
    runs_before, runs_after = runs_around_layers(graph)
    counts[0] += runs_before
    counts[-1] += runs_after
    return [0, *accumulate(counts)]
