"""The DAG of stages: which stage hands which values to which, by either routing."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping

from planner.plan.crossing import Crossing, Residence
from planner.plan.options import Routing
from planner.plan.plan import GRAPH_INPUT, Plan, StageEdge


def stage_edges(
    residence: Residence,
    sizes: Mapping[int, int],
    routing: Routing,
    num_stages: int,
    with_gradient: Container[int] = (),
) -> tuple[StageEdge, ...]:
    """At most one edge per pair of stages, sorted by pair; its values in table order.

    A stage that needs no value has an edge of none from the stage before: it tells when a microbatch begins, and whose
    it is. `with_gradient`: values whose gradients come back; a graph's input has none that anyone waits for.
    """
    carried: dict[tuple[int, int], list[int]] = {}
    for crossing in residence.crossings:
        for pair in _hops(crossing, routing):
            carried.setdefault(pair, []).append(crossing.value_id)
    fed = {target for _, target in carried}
    carried.update(((stage - 1, stage), []) for stage in range(1, num_stages) if stage not in fed)
    return tuple(
        StageEdge(
            source_stage=source,
            target_stage=target,
            value_ids=tuple(value_ids),
            size_bytes=sum(sizes[value_id] for value_id in value_ids),
            gradient_value_ids=tuple(value_id for value_id in value_ids if value_id in with_gradient),
        )
        for (source, target), value_ids in sorted(carried.items())
    )


def _hops(crossing: Crossing, routing: Routing) -> Iterator[tuple[int, int]]:
    targets = crossing.target_stages
    if routing is Routing.DIRECT:
        yield from ((crossing.source_stage, target) for target in targets)
    elif targets:
        yield from ((stage, stage + 1) for stage in range(crossing.source_stage, targets[-1]))


def sent_ahead(plan: Plan) -> frozenset[int]:
    """Indices of the edges that leave before the pass of their source, in inference: those that carry inputs of the
    graph alone, so that a second tower runs beside the first one, and those of no value, which only tell of a
    microbatch."""
    inputs = [
        {entry.value_id for entry in stage.liveness if entry.producer_stage == GRAPH_INPUT} for stage in plan.stages
    ]
    return frozenset(
        index
        for index, edge in enumerate(plan.edges)
        if not edge.value_ids or (edge.source_stage == 0 and inputs[edge.target_stage].issuperset(edge.value_ids))
    )
