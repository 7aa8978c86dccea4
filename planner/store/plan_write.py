"""A plan as rows: the plan's own first, then one for each stage, tensor, edge and tie."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict
from datetime import datetime
from typing import Any

from planner.cost.sources import CostSource
from planner.plan.options_document import options_document
from planner.plan.plan import PassOrder, Plan, Stage
from planner.store.expressions import expression_to_json
from planner.store.many_rows import TableRow
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


def plan_rows(plan_id: str, plan: Plan, inventory_id: str, now: datetime) -> Iterator[TableRow]:
    yield _row(
        PlanRow,
        id=plan_id,
        graph_id=plan.graph_id,
        inventory_id=inventory_id,
        graph_name=plan.graph_name,
        num_nodes=plan.num_nodes,
        num_stages=len(plan.stages),
        mode=plan.options.mode.name,
        objective=plan.options.objective.value,
        options=options_document(plan.options),
        symbol_values=[list(pair) for pair in plan.symbol_values],
        bottleneck_seconds=plan.bottleneck_seconds,
        latency_seconds=plan.latency_seconds,
        step_seconds=plan.step_seconds,
        cost_sources=[_cost_source(source) for source in plan.cost_sources],
        pass_orders=[_pass_order(order) for order in plan.pass_orders],
        lower_bound_seconds=plan.lower_bound_seconds,
        peak_bytes=_peak_bytes(plan),
        created_at=now,
    )
    for stage in plan.stages:
        yield from _stage_rows(plan_id, stage)
    yield from _edge_rows(plan_id, plan)
    yield from _tie_rows(plan_id, plan)


def _cost_source(source: CostSource) -> dict[str, Any]:
    return {**asdict(source), "rates": source.rates.value}


def _pass_order(order: PassOrder) -> list[Any]:
    return [order.device_id, [[step.kind.value, step.stage, step.microbatch] for step in order.steps]]


def _peak_bytes(plan: Plan) -> int:
    """On the fullest device."""
    devices: Counter[str] = Counter()
    for stage in plan.stages:
        devices.update(dict.fromkeys(stage.device_ids, stage.memory.peak_bytes))
    return max(devices.values(), default=0)


def _stage_rows(plan_id: str, stage: Stage) -> Iterator[TableRow]:
    at = {"plan_id": plan_id, "stage": stage.index}
    yield _row(
        PlanStageRow,
        **at,
        num_nodes=stage.num_nodes,
        compute_seconds=stage.compute_seconds,
        communication_seconds=stage.communication_seconds,
        backward_seconds=stage.backward_seconds,
        weight_share=stage.weight_share,
        delivery_seconds=stage.delivery_seconds,
        recomputes_activations=stage.recomputes_activations,
        flops=stage.flops,
        state_bytes=stage.memory.state_bytes,
        activation_bytes=stage.memory.activation_bytes,
        buffer_bytes=stage.memory.buffer_bytes,
        gradient_bytes=stage.memory.gradient_bytes,
        optimizer_bytes=stage.memory.optimizer_bytes,
        saved_bytes=stage.memory.saved_bytes,
        peak_bytes=stage.memory.peak_bytes,
        reason=stage.reason,
        first_module=stage.first_module,
        last_module=stage.last_module,
    )
    ranges = [(first, end, False) for first, end in stage.node_ranges]
    ranges += [(first, end, True) for first, end in stage.recomputed_ranges]
    for position, (first, end, recomputed) in enumerate(ranges):
        yield _row(
            PlanStageNodeRangeRow, **at, position=position, first_node=first, end_node=end, recomputed=recomputed
        )
    for position, device_id in enumerate(stage.device_ids):
        yield _row(PlanStageDeviceRow, **at, position=position, device_id=device_id)
    for position, name in enumerate(stage.states):
        yield _row(PlanStageStateRow, **at, position=position, name=name)
    for position, value_id in enumerate(stage.outputs):
        yield _row(PlanStageOutputRow, **at, position=position, value_id=value_id)
    for position, tensor in enumerate(stage.liveness):
        yield _row(
            PlanLivenessRow,
            **at,
            position=position,
            value_id=tensor.value_id,
            name=tensor.name,
            kind=tensor.kind.value,
            dtype=tensor.dtype.value if tensor.dtype else None,
            dims=[expression_to_json(dim) for dim in tensor.dims],
            size_bytes=tensor.size_bytes,
            producer_stage=tensor.producer_stage,
            consumed=tensor.consumed,
            bypassing=tensor.bypassing,
        )


def _edge_rows(plan_id: str, plan: Plan) -> Iterator[TableRow]:
    for index, edge in enumerate(plan.edges):
        yield _row(
            PlanEdgeRow,
            plan_id=plan_id,
            edge=index,
            source_stage=edge.source_stage,
            target_stage=edge.target_stage,
            size_bytes=edge.size_bytes,
        )
        for position, value_id in enumerate(edge.value_ids):
            yield _row(
                PlanEdgeValueRow,
                plan_id=plan_id,
                edge=index,
                position=position,
                value_id=value_id,
                has_gradient=value_id in edge.gradient_value_ids,
            )


def _tie_rows(plan_id: str, plan: Plan) -> Iterator[TableRow]:
    for index, group in enumerate(plan.tie_groups):
        yield _row(
            PlanTieGroupRow,
            plan_id=plan_id,
            position=index,
            tie_group=group.id,
            size_bytes=group.size_bytes,
            requires_grad=group.requires_grad,
        )
        for position, (name, stage) in enumerate(group.members):
            yield _row(
                PlanTieMemberRow, plan_id=plan_id, group_position=index, position=position, name=name, stage=stage
            )


def _row(table: type[Row], **columns: Any) -> TableRow:
    return table, columns
