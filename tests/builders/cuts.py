"""Splits of a graph into many small stages, for tests that the stages together give what the whole gives."""

from __future__ import annotations

from planner.graph.alias import no_cut_groups
from planner.graph.ir import Graph


def even_cuts(graph: Graph, max_stages: int = 6) -> list[int]:
    """The stage of each node: about as many nodes in each, cut where no group of nodes must stay together."""
    inside = {index for group in no_cut_groups(graph) for index in range(min(group) + 1, max(group) + 1)}
    allowed = [index for index in range(1, len(graph.nodes)) if index not in inside]
    step = max(1, -(-len(allowed) // (max_stages - 1)))
    cuts = set(allowed[step // 2 :: step])
    stage, stages = 0, []
    for index in range(len(graph.nodes)):
        stage += index in cuts
        stages.append(stage)
    return stages
