"""Rows as a plan again: the inverse of planner.store.plan_write, equal to the last bit."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession

from planner.cost.inventory import Inventory
from planner.cost.sources import CostSource, RateSource
from planner.graph.ir import Dtype, ValueKind
from planner.partition.training.pipeline_order import Pass, Step
from planner.plan.options_document import options_from_document
from planner.plan.plan import LiveTensor, PassOrder, Plan, Stage, StageEdge, StageMemory, TieGroup
from planner.store.expressions import expression_from_json
from planner.store.many_rows import ROWS_AT_ONCE
from planner.store.tables import (
    PlanEdgeRow,
    PlanEdgeValueRow,
    PlanLivenessRow,
    PlanRow,
    PlanStageDeviceRow,
    PlanStageNodeRangeRow,
    PlanStageOutputRow,
    PlanStageRow,
    PlanStageStateRow,
    PlanTieGroupRow,
    PlanTieMemberRow,
    Row,
)

Item = TypeVar("Item")


async def read_plan(session: AsyncSession, row: PlanRow, inventory: Inventory) -> Plan:
    return Plan(
        graph_id=row.graph_id,
        graph_name=row.graph_name,
        num_nodes=row.num_nodes,
        options=options_from_document(row.options),
        inventory=inventory,
        stages=await _stages(session, row.id),
        edges=await _edges(session, row.id),
        tie_groups=await _tie_groups(session, row.id),
        bottleneck_seconds=row.bottleneck_seconds,
        latency_seconds=row.latency_seconds,
        lower_bound_seconds=row.lower_bound_seconds,
        symbol_values=_pairs(row.symbol_values),
        step_seconds=row.step_seconds,
        cost_sources=tuple(_cost_source(content) for content in row.cost_sources),
        pass_orders=tuple(_pass_order(*content) for content in row.pass_orders),
    )


def _pairs(content: list[Any]) -> tuple[tuple[str, int], ...]:
    return tuple((name, value) for name, value in content)


def _pass_order(device_id: str, steps: list[Any]) -> PassOrder:
    return PassOrder(
        device_id=device_id, steps=tuple(Step(Pass(kind), stage, microbatch) for kind, stage, microbatch in steps)
    )


def _cost_source(content: Mapping[str, Any]) -> CostSource:
    ids = {name: tuple(content[name]) for name in ("measured_profile_ids", "calibration_profile_ids")}
    return CostSource(**{**content, "rates": RateSource(content["rates"]), **ids})


async def _stages(session: AsyncSession, plan_id: str) -> tuple[Stage, ...]:
    ranges = await _grouped(session, PlanStageNodeRangeRow, plan_id, lambda row: row)
    devices = await _grouped(session, PlanStageDeviceRow, plan_id, lambda row: row.device_id)
    states = await _grouped(session, PlanStageStateRow, plan_id, lambda row: row.name)
    outputs = await _grouped(session, PlanStageOutputRow, plan_id, lambda row: row.value_id)
    liveness = await _grouped(session, PlanLivenessRow, plan_id, _live_tensor)
    return tuple(
        Stage(
            index=row.stage,
            node_ranges=_ranges(ranges.get(row.stage, ()), recomputed=False),
            device_ids=tuple(devices.get(row.stage, ())),
            states=tuple(states.get(row.stage, ())),
            liveness=tuple(liveness.get(row.stage, ())),
            outputs=tuple(outputs.get(row.stage, ())),
            compute_seconds=row.compute_seconds,
            communication_seconds=row.communication_seconds,
            flops=row.flops,
            memory=StageMemory(
                state_bytes=row.state_bytes,
                activation_bytes=row.activation_bytes,
                buffer_bytes=row.buffer_bytes,
                gradient_bytes=row.gradient_bytes,
                optimizer_bytes=row.optimizer_bytes,
                saved_bytes=row.saved_bytes,
            ),
            reason=row.reason,
            first_module=row.first_module,
            last_module=row.last_module,
            backward_seconds=row.backward_seconds,
            weight_share=row.weight_share,
            recomputed_ranges=_ranges(ranges.get(row.stage, ()), recomputed=True),
            recomputes_activations=row.recomputes_activations,
            delivery_seconds=row.delivery_seconds,
        )
        for row in await _rows(session, PlanStageRow, plan_id)
    )


def _ranges(rows: Sequence[PlanStageNodeRangeRow], *, recomputed: bool) -> tuple[tuple[int, int], ...]:
    return tuple((row.first_node, row.end_node) for row in rows if row.recomputed is recomputed)


def _live_tensor(row: PlanLivenessRow) -> LiveTensor:
    return LiveTensor(
        value_id=row.value_id,
        name=row.name,
        kind=ValueKind(row.kind),
        dtype=Dtype(row.dtype) if row.dtype else None,
        dims=tuple(expression_from_json(dim) for dim in row.dims),
        size_bytes=row.size_bytes,
        producer_stage=row.producer_stage,
        consumed=row.consumed,
        bypassing=row.bypassing,
    )


async def _edges(session: AsyncSession, plan_id: str) -> tuple[StageEdge, ...]:
    values = await _grouped(
        session, PlanEdgeValueRow, plan_id, lambda row: (row.value_id, row.has_gradient), group="edge"
    )
    return tuple(
        StageEdge(
            source_stage=row.source_stage,
            target_stage=row.target_stage,
            value_ids=tuple(value_id for value_id, _ in values.get(row.edge, ())),
            size_bytes=row.size_bytes,
            gradient_value_ids=tuple(value_id for value_id, has_gradient in values.get(row.edge, ()) if has_gradient),
        )
        for row in await _rows(session, PlanEdgeRow, plan_id)
    )


async def _tie_groups(session: AsyncSession, plan_id: str) -> tuple[TieGroup, ...]:
    members = await _grouped(
        session, PlanTieMemberRow, plan_id, lambda row: (row.name, row.stage), group="group_position"
    )
    return tuple(
        TieGroup(
            id=row.tie_group,
            members=tuple(members.get(row.position, ())),
            size_bytes=row.size_bytes,
            requires_grad=row.requires_grad,
        )
        for row in await _rows(session, PlanTieGroupRow, plan_id)
    )


async def _rows(session: AsyncSession, table: type[Row], plan_id: str) -> Sequence[Any]:
    """The plan's rows in the order of their primary key, which is the plan's own.

    They have the table's attributes and are not of its class: see plan_write.
    """
    columns = table.__table__
    query = select(columns).where(columns.c.plan_id == plan_id).order_by(*columns.primary_key)
    rows: list[Any] = []
    for some in (await session.execute(query)).partitions(ROWS_AT_ONCE):
        rows.extend(some)
        await asyncio.sleep(0)
    return rows


async def _grouped(
    session: AsyncSession,
    table: type[Row],
    plan_id: str,
    make: Callable[[Any], Item],
    group: str = "stage",
) -> dict[int, list[Item]]:
    groups: dict[int, list[Item]] = {}
    for index, row in enumerate(await _rows(session, table, plan_id), start=1):
        groups.setdefault(getattr(row, group), []).append(make(row))
        if index % ROWS_AT_ONCE == 0:
            await asyncio.sleep(0)
    return groups
