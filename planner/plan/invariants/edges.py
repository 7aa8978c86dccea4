"""Edges carry exactly what the routing asks for, once and in table order; a stage that needs no value hears from the
stage before it all the same."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from planner.plan.invariants.broken import broken
from planner.plan.invariants.tables import Needs
from planner.plan.options import Routing
from planner.plan.plan import GRAPH_INPUT, Plan


def check_edges(plan: Plan, needs: Sequence[Needs], sizes: Mapping[int, int]) -> None:
    needed = _relayed(needs) if plan.options.routing is Routing.RELAY else _direct(needs)
    heard = {target for _, target in needed}
    needed.update(((stage - 1, stage), ()) for stage in range(1, len(needs)) if stage not in heard)
    edges = {(edge.source_stage, edge.target_stage): edge for edge in plan.edges}
    for pair in sorted({*needed, *edges}):
        carried = edges[pair].value_ids if pair in edges else None
        if carried != needed.get(pair):
            raise broken(
                "edges",
                f"stage {pair[0]} sends {carried or 'nothing'} to stage {pair[1]}, "
                f"{plan.options.routing.value} routing needs {needed.get(pair, 'no such edge')}",
            )
    for edge in plan.edges:
        size_bytes = sum(sizes[value_id] for value_id in edge.value_ids)
        if edge.size_bytes != size_bytes:
            raise broken(
                "edge_bytes",
                f"stage {edge.source_stage} to {edge.target_stage}: {edge.size_bytes} bytes, needs {size_bytes}",
            )


def _relayed(needs: Sequence[Needs]) -> dict[tuple[int, int], tuple[int, ...]]:
    return {(stage - 1, stage): tuple(needs[stage].entry) for stage in range(1, len(needs)) if needs[stage].entry}


def _direct(needs: Sequence[Needs]) -> dict[tuple[int, int], tuple[int, ...]]:
    carried: dict[tuple[int, int], tuple[int, ...]] = {}
    for stage in range(1, len(needs)):
        is_last = stage == len(needs) - 1
        for value_id, (producer_stage, consumed, bypassing) in needs[stage].entry.items():
            if consumed or (is_last and bypassing):
                pair = (0 if producer_stage == GRAPH_INPUT else producer_stage, stage)
                carried[pair] = (*carried.get(pair, ()), value_id)
    return carried
