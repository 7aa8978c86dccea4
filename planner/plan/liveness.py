"""Each stage's liveness table: what is live on entry, read there (consumed) or behind it (bypassing).

The table does not depend on the routing: RELAY carries all of it from neighbour to neighbour, DIRECT only what the
stage consumes, and to the last stage what it returns.
"""

from __future__ import annotations

from collections.abc import Mapping

from planner.graph.ir import Value
from planner.plan.crossing import Crossing, Residence
from planner.plan.plan import GRAPH_INPUT, LiveTensor


def liveness_tables(
    residence: Residence, values: Mapping[int, Value], sizes: Mapping[int, int], num_stages: int
) -> tuple[tuple[LiveTensor, ...], ...]:
    """One table per stage, in table order. Stage 0 has every input of the graph, read or not."""
    tables: list[list[LiveTensor]] = [[] for _ in range(num_stages)]
    for crossing in residence.crossings:
        last = max(crossing.target_stages, default=crossing.source_stage)
        first = 0 if crossing.is_input else crossing.source_stage + 1
        for stage in range(first, last + 1):
            value = values[crossing.value_id]
            tables[stage].append(_entry(crossing, value, sizes[value.id], stage, last))
    return tuple(tuple(table) for table in tables)


def _entry(crossing: Crossing, value: Value, size_bytes: int, stage: int, last: int) -> LiveTensor:
    return LiveTensor(
        value_id=value.id,
        name=value.name,
        kind=value.kind,
        dtype=value.dtype,
        dims=value.dims,
        size_bytes=size_bytes,
        producer_stage=GRAPH_INPUT if crossing.is_input else crossing.source_stage,
        consumed=stage in crossing.reading_stages,
        bypassing=stage < last or (crossing.returned and stage == crossing.num_stages - 1),
    )
