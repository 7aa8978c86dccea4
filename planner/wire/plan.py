"""Plans on the wire."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from datetime import datetime
from typing import Literal, TypeVar

from planner.cost.measured import MAX_SECONDS
from planner.cost.sources import CostSource, RateSource
from planner.errors import InvalidArgument
from planner.graph.ir import Dtype
from planner.partition.objective import USUAL_WEIGHT_SHARE
from planner.partition.training.pipeline_order import Pass, Step
from planner.plan.plan import LiveTensor, PassOrder, Plan, Stage, StageEdge, StageMemory, TieGroup
from planner.wire.graph.enumerations import DTYPES, VALUE_KINDS
from planner.wire.graph.expressions import expression_from_proto, expression_to_proto
from planner.wire.inventory import inventory_from_proto, inventory_to_proto
from planner.wire.options import options_from_proto, options_to_proto
from protos.v1 import graph_pb2, plan_pb2

Message = TypeVar("Message")
Record = TypeVar("Record")

__all__ = ["options_from_proto", "options_to_proto", "plan_from_proto", "plan_to_proto"]


def plan_to_proto(plan: Plan, *, plan_id: str, created_at: datetime) -> plan_pb2.Plan:
    """`created_at` is aware, or naive in UTC."""
    message = plan_pb2.Plan(
        id=plan_id,
        graph_id=plan.graph_id,
        graph_name=plan.graph_name,
        num_nodes=plan.num_nodes,
        mode=plan.options.mode.name,
        options=options_to_proto(plan.options),
        inventory=inventory_to_proto(plan.inventory),
        stages=[_stage_to_proto(stage) for stage in plan.stages],
        edges=[_edge_to_proto(edge) for edge in plan.edges],
        tie_groups=[_tie_group_to_proto(group) for group in plan.tie_groups],
        bottleneck_seconds=plan.bottleneck_seconds,
        latency_seconds=plan.latency_seconds,
        lower_bound_seconds=plan.lower_bound_seconds,
        symbol_values=dict(plan.symbol_values),
        step_seconds=plan.step_seconds,
        cost_sources=[_cost_source_to_proto(source) for source in plan.cost_sources],
        pass_orders=[_pass_order_to_proto(order) for order in plan.pass_orders],
    )
    message.created_at.FromDatetime(created_at)
    return message


def plan_from_proto(message: plan_pb2.Plan) -> Plan:
    """Raises InvalidArgument, naming the element. `planner.plan.verify` says whether the plan is sound."""
    return Plan(
        graph_id=message.graph_id,
        graph_name=message.graph_name,
        num_nodes=message.num_nodes,
        options=options_from_proto(message.options),
        inventory=inventory_from_proto(message.inventory),
        stages=_each("plan.stages", message.stages, _stage_from_proto),
        edges=_each("plan.edges", message.edges, _edge_from_proto),
        tie_groups=_each("plan.tie_groups", message.tie_groups, _tie_group_from_proto),
        bottleneck_seconds=message.bottleneck_seconds,
        latency_seconds=message.latency_seconds,
        lower_bound_seconds=message.lower_bound_seconds if message.HasField("lower_bound_seconds") else None,
        symbol_values=tuple(sorted(message.symbol_values.items())),
        step_seconds=message.step_seconds if message.HasField("step_seconds") else None,
        cost_sources=_each("plan.cost_sources", message.cost_sources, _cost_source_from_proto),
        pass_orders=_each("plan.pass_orders", message.pass_orders, _pass_order_from_proto),
    )


def _each(field: str, messages: Iterable[Message], read: Callable[[Message], Record]) -> tuple[Record, ...]:
    records: list[Record] = []
    for message in messages:
        try:
            records.append(read(message))
        except InvalidArgument as error:
            where = f"{field}[{len(records)}]"
            raise type(error)(f"{where}: {error.message}", **{**error.metadata, "field": where}) from None
    return tuple(records)


def _stage_to_proto(stage: Stage) -> plan_pb2.Stage:
    return plan_pb2.Stage(
        index=stage.index,
        node_ranges=[plan_pb2.NodeRange(start=start, end=end) for start, end in stage.node_ranges],
        device_ids=stage.device_ids,
        states=stage.states,
        liveness=[_live_tensor_to_proto(entry) for entry in stage.liveness],
        outputs=stage.outputs,
        compute_seconds=stage.compute_seconds,
        communication_seconds=stage.communication_seconds,
        memory=_memory_to_proto(stage.memory),
        num_nodes=stage.num_nodes,
        reason=stage.reason,
        first_module=stage.first_module,
        last_module=stage.last_module,
        flops=stage.flops,
        backward_seconds=stage.backward_seconds,
        weight_share=stage.weight_share,
        recomputed_ranges=[plan_pb2.NodeRange(start=start, end=end) for start, end in stage.recomputed_ranges],
        recomputes_activations=stage.recomputes_activations,
        delivery_seconds=stage.delivery_seconds,
    )


def _stage_from_proto(message: plan_pb2.Stage) -> Stage:
    return Stage(
        index=message.index,
        node_ranges=tuple((range_.start, range_.end) for range_ in message.node_ranges),
        device_ids=tuple(message.device_ids),
        states=tuple(message.states),
        liveness=_each("liveness", message.liveness, _live_tensor_from_proto),
        outputs=tuple(message.outputs),
        compute_seconds=message.compute_seconds,
        communication_seconds=message.communication_seconds,
        flops=message.flops,
        memory=StageMemory(
            state_bytes=message.memory.state_bytes,
            activation_bytes=message.memory.activation_bytes,
            buffer_bytes=message.memory.buffer_bytes,
            gradient_bytes=message.memory.gradient_bytes,
            optimizer_bytes=message.memory.optimizer_bytes,
            saved_bytes=message.memory.saved_bytes,
        ),
        reason=message.reason,
        first_module=message.first_module,
        last_module=message.last_module,
        backward_seconds=message.backward_seconds,
        weight_share=message.weight_share if message.HasField("weight_share") else USUAL_WEIGHT_SHARE,
        recomputed_ranges=tuple((range_.start, range_.end) for range_ in message.recomputed_ranges),
        recomputes_activations=message.recomputes_activations,
        delivery_seconds=message.delivery_seconds,
    )


def _memory_to_proto(memory: StageMemory) -> plan_pb2.StageMemory:
    return plan_pb2.StageMemory(
        state_bytes=memory.state_bytes,
        activation_bytes=memory.activation_bytes,
        buffer_bytes=memory.buffer_bytes,
        gradient_bytes=memory.gradient_bytes,
        optimizer_bytes=memory.optimizer_bytes,
        saved_bytes=memory.saved_bytes,
        peak_bytes=memory.peak_bytes,
    )


def _live_tensor_to_proto(entry: LiveTensor) -> plan_pb2.LiveTensor:
    return plan_pb2.LiveTensor(
        value=entry.value_id,
        name=entry.name,
        kind=VALUE_KINDS.number[entry.kind],
        dtype=DTYPES.number[entry.dtype] if entry.dtype is not None else graph_pb2.DTYPE_UNSPECIFIED,
        dims=[expression_to_proto(dim) for dim in entry.dims],
        size_bytes=entry.size_bytes,
        producer_stage=entry.producer_stage,
        consumed=entry.consumed,
        bypassing=entry.bypassing,
    )


def _live_tensor_from_proto(message: plan_pb2.LiveTensor) -> LiveTensor:
    return LiveTensor(
        value_id=message.value,
        name=message.name,
        kind=VALUE_KINDS.member(message.kind),
        dtype=_dtype(message.dtype),
        dims=_each("dims", message.dims, expression_from_proto),
        size_bytes=message.size_bytes,
        producer_stage=message.producer_stage,
        consumed=message.consumed,
        bypassing=message.bypassing,
    )


def _dtype(number: int) -> Dtype | None:
    return None if number == graph_pb2.DTYPE_UNSPECIFIED else DTYPES.member(number)


def _edge_to_proto(edge: StageEdge) -> plan_pb2.StageEdge:
    return plan_pb2.StageEdge(
        source_stage=edge.source_stage,
        target_stage=edge.target_stage,
        values=edge.value_ids,
        size_bytes=edge.size_bytes,
        gradient_values=edge.gradient_value_ids,
    )


def _edge_from_proto(message: plan_pb2.StageEdge) -> StageEdge:
    return StageEdge(
        source_stage=message.source_stage,
        target_stage=message.target_stage,
        value_ids=tuple(message.values),
        size_bytes=message.size_bytes,
        gradient_value_ids=tuple(message.gradient_values),
    )


def _tie_group_to_proto(group: TieGroup) -> plan_pb2.TieGroup:
    members = [plan_pb2.TieGroup.TiedState(name=name, stage=stage) for name, stage in group.members]
    return plan_pb2.TieGroup(
        id=group.id, members=members, size_bytes=group.size_bytes, requires_grad=group.requires_grad
    )


def _tie_group_from_proto(message: plan_pb2.TieGroup) -> TieGroup:
    return TieGroup(
        id=message.id,
        members=tuple((member.name, member.stage) for member in message.members),
        size_bytes=message.size_bytes,
        requires_grad=message.requires_grad,
    )


def _cost_source_to_proto(source: CostSource) -> plan_pb2.CostSource:
    return plan_pb2.CostSource(
        device_kind=source.device_kind,
        num_measured=source.num_measured,
        num_nodes=source.num_nodes,
        num_backward=source.num_backward,
        rates=plan_pb2.RateSource.Value(f"RATE_SOURCE_{source.rates.name}"),
        scaled=source.scaled,
        measured_profile_ids=source.measured_profile_ids,
        calibration_profile_ids=source.calibration_profile_ids,
        message_seconds=source.message_seconds,
        norm_bytes_per_second=source.norm_bytes_per_second,
        optimizer_bytes_per_second=source.optimizer_bytes_per_second,
    )


def _cost_source_from_proto(message: plan_pb2.CostSource) -> CostSource:
    try:
        rates = RateSource[plan_pb2.RateSource.Name(message.rates).removeprefix("RATE_SOURCE_")]
    except (KeyError, ValueError):
        raise InvalidArgument(f"rates is {message.rates}, which is no known source of rates") from None
    return CostSource(
        device_kind=message.device_kind,
        num_measured=message.num_measured,
        num_nodes=message.num_nodes,
        num_backward=message.num_backward,
        rates=rates,
        scaled=message.scaled,
        measured_profile_ids=tuple(message.measured_profile_ids),
        calibration_profile_ids=tuple(message.calibration_profile_ids),
        message_seconds=_message_seconds(message),
        norm_bytes_per_second=_rate(message, "norm_bytes_per_second"),
        optimizer_bytes_per_second=_rate(message, "optimizer_bytes_per_second"),
    )


def _rate(
    message: plan_pb2.CostSource, name: Literal["norm_bytes_per_second", "optimizer_bytes_per_second"]
) -> float | None:
    if not message.HasField(name):
        return None
    rate: float = getattr(message, name)
    if not 0.0 < rate < math.inf:
        raise InvalidArgument(f"{name} is {rate}, needs a finite number above 0")
    return rate


def _message_seconds(message: plan_pb2.CostSource) -> float | None:
    if not message.HasField("message_seconds"):
        return None
    if not 0.0 <= message.message_seconds <= MAX_SECONDS:
        raise InvalidArgument(f"message_seconds is {message.message_seconds}, needs 0 to {MAX_SECONDS:g}")
    return message.message_seconds


_PASSES = {
    plan_pb2.PASS_KIND_FORWARD: Pass.FORWARD,
    plan_pb2.PASS_KIND_BACKWARD: Pass.BACKWARD,
    plan_pb2.PASS_KIND_BACKWARD_INPUT: Pass.BACKWARD_INPUT,
    plan_pb2.PASS_KIND_BACKWARD_WEIGHT: Pass.BACKWARD_WEIGHT,
}
_PASS_NUMBERS = {kind: number for number, kind in _PASSES.items()}


def _pass_order_to_proto(order: PassOrder) -> plan_pb2.PassOrder:
    return plan_pb2.PassOrder(
        device_id=order.device_id,
        kinds=[_PASS_NUMBERS[step.kind] for step in order.steps],
        stages=[step.stage for step in order.steps],
        microbatches=[step.microbatch for step in order.steps],
    )


def _pass_order_from_proto(message: plan_pb2.PassOrder) -> PassOrder:
    lengths = len(message.kinds), len(message.stages), len(message.microbatches)
    if len(set(lengths)) > 1:
        counts = ", ".join(map(str, lengths))
        raise InvalidArgument(f"kinds, stages and microbatches have {counts} entries; they need as many of each")
    unknown = next((kind for kind in message.kinds if kind not in _PASSES), None)
    if unknown is not None:
        raise InvalidArgument(f"kinds names pass {unknown}, which this planner does not know")
    rows = zip(message.kinds, message.stages, message.microbatches, strict=True)
    return PassOrder(device_id=message.device_id, steps=tuple(Step(_PASSES[kind], *rest) for kind, *rest in rows))
