"""Messages to the runtime's records and back. Protobuf goes no further in than this."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Protocol

import torch
from google.protobuf.message import DecodeError

from access.ring import aligned
from access.tensor_fields import LARGE_BYTES, Extent, Numbers, enclosed, skim, value_buffers
from protos.v1 import graph_pb2, planner_pb2, stage_daemon_pb2
from stage_daemon.errors import InvalidRequest
from stage_daemon.loader.dtypes import torch_dtype
from stage_daemon.runtime.actions import Action, Kind, Lane
from stage_daemon.runtime.egress import Result
from stage_daemon.runtime.ingress import RawItem, RawTensor, in_own_memory
from stage_daemon.runtime.metrics import StageMetrics
from stage_daemon.runtime.timeline import COMPUTE, RECEIVES, SENDS, Timeline
from stage_daemon.transport.declared import (
    DeclaredValue,
    Dimension,
    DimensionOperator,
    Operation,
    Symbol,
    SymbolReference,
    ValueKind,
)
from stage_daemon.transport.edge import Edge
from stage_daemon.transport.parcel import Item, MicrobatchFailure
from stage_daemon.transport.turn import EVERY, Turn

MAX_DEPTH = 64
# Of protobuf.
MAX_MESSAGE_BYTES = (1 << 31) - 1
_UNSENDABLE = (InvalidRequest, ValueError, MemoryError)
_VALUES = Numbers.of(stage_daemon_pb2.MicrobatchResult.DESCRIPTOR.fields_by_name["values"])
_OF_INPUTS = Numbers.of(stage_daemon_pb2.Microbatch.DESCRIPTOR.fields_by_name["values"])
_RESULT = stage_daemon_pb2.ReceiveOutputsResponse.DESCRIPTOR.fields_by_name["result"].number

_KINDS = {
    graph_pb2.VALUE_KIND_TENSOR: ValueKind.TENSOR,
    graph_pb2.VALUE_KIND_SYM_INT: ValueKind.INTEGER,
    graph_pb2.VALUE_KIND_SYM_FLOAT: ValueKind.FLOATING,
    graph_pb2.VALUE_KIND_SYM_BOOL: ValueKind.BOOLEAN,
}
_OPERATORS = {
    graph_pb2.Expression.Operation.OPERATOR_ADD: DimensionOperator.ADD,
    graph_pb2.Expression.Operation.OPERATOR_MULTIPLY: DimensionOperator.MULTIPLY,
    graph_pb2.Expression.Operation.OPERATOR_FLOOR_DIVIDE: DimensionOperator.FLOOR_DIVIDE,
    graph_pb2.Expression.Operation.OPERATOR_MODULO: DimensionOperator.MODULO,
    graph_pb2.Expression.Operation.OPERATOR_CEIL_DIVIDE: DimensionOperator.CEIL_DIVIDE,
    graph_pb2.Expression.Operation.OPERATOR_POWER: DimensionOperator.POWER,
    graph_pb2.Expression.Operation.OPERATOR_MINIMUM: DimensionOperator.MINIMUM,
    graph_pb2.Expression.Operation.OPERATOR_MAXIMUM: DimensionOperator.MAXIMUM,
}
_ACTIONS = {stage_daemon_pb2.ActionKind.Value(f"ACTION_KIND_{kind.name}"): kind for kind in Kind}
_WIRE_ACTIONS = {kind: value for value, kind in _ACTIONS.items()}
_WIRE_DTYPES = {
    torch_dtype("", number): number for number in graph_pb2.Dtype.values() if number != graph_pb2.DTYPE_UNSPECIFIED
}
_TORCH_DTYPES = {number: dtype for dtype, number in _WIRE_DTYPES.items()}


def symbols_from_proto(symbols: Sequence[graph_pb2.Symbol]) -> dict[int, Symbol]:
    return {
        symbol.id: Symbol(
            id=symbol.id,
            name=symbol.name,
            lower=symbol.lower,
            upper=symbol.upper if symbol.HasField("upper") else None,
        )
        for symbol in symbols
    }


def edge_from_proto(
    edge: stage_daemon_pb2.Edge, deployment_id: str, generation: int, symbols: Mapping[int, Symbol]
) -> Edge:
    return Edge(
        id=edge.id,
        deployment_id=deployment_id,
        generation=generation,
        source_stage=edge.source_stage,
        target_stage=edge.target_stage,
        source_device_id=edge.source_device_id,
        target_device_id=edge.target_device_id,
        values=declared_from_proto(edge.values),
        symbols=symbols,
        in_flight=edge.microbatches_in_flight,
        turn=turn_from_proto(edge.turn) if edge.HasField("turn") else EVERY,
        source_copy=edge.source_copy if edge.HasField("source_copy") else None,
        target_copy=edge.target_copy if edge.HasField("target_copy") else None,
    )


def turn_from_proto(turn: stage_daemon_pb2.Turn) -> Turn:
    try:
        return Turn(turn.first + 1, turn.every)
    except ValueError as error:
        raise InvalidRequest(f"a turn of {turn.every} microbatches: {error}") from None


def declared_from_proto(values: Sequence[stage_daemon_pb2.EdgeValue]) -> tuple[DeclaredValue, ...]:
    return tuple(map(_declared_value, values))


def _declared_value(value: stage_daemon_pb2.EdgeValue) -> DeclaredValue:
    if value.kind not in _KINDS:
        kind = graph_pb2.ValueKind.Name(value.kind) if value.kind in graph_pb2.ValueKind.values() else value.kind
        raise InvalidRequest(f"value {value.name!r}: kind {kind}, needs a tensor or a scalar")
    name = value.name or f"value {value.value}"
    if value.kind != graph_pb2.VALUE_KIND_TENSOR:
        return DeclaredValue(value_id=value.value, name=name, kind=_KINDS[value.kind])
    return DeclaredValue(
        value_id=value.value,
        name=name,
        kind=ValueKind.TENSOR,
        dtype=torch_dtype(name, value.dtype),
        dims=tuple(_dimension(dimension, name) for dimension in value.dims),
    )


def _dimension(expression: graph_pb2.Expression, where: str, depth: int = 0) -> Dimension:
    kind = expression.WhichOneof("kind")
    if kind == "constant":
        return expression.constant
    if kind == "symbol":
        return SymbolReference(expression.symbol)
    if kind is None or depth == MAX_DEPTH:
        raise InvalidRequest(f"{where!r}: a dimension that is empty or nested deeper than {MAX_DEPTH}")
    operation = expression.operation
    if operation.operator not in _OPERATORS:
        raise InvalidRequest(f"{where!r}: a dimension with operator {operation.operator}, needs a known one")
    operands = tuple(_dimension(operand, where, depth + 1) for operand in operation.operands)
    try:
        return Operation(_OPERATORS[operation.operator], operands)
    except ValueError as error:
        raise InvalidRequest(f"{where!r}: a dimension with {error}") from None


def lane_from_proto(lane: stage_daemon_pb2.Lane) -> Lane:
    return tuple(map(action_from_proto, lane.actions))


def action_from_proto(action: stage_daemon_pb2.Action) -> Action:
    if action.kind not in _ACTIONS:
        raise InvalidRequest("an action of no known kind; planner and daemons are of different versions")
    microbatch = action.microbatch if action.HasField("microbatch") else None
    return Action(_ACTIONS[action.kind], action.index, microbatch, tuple(action.edges_in_turn))


def read_inputs(content: bytes) -> list[RawItem]:
    """Of a serialized Microbatch. The tensors of a large one get memory of their own here. Raises DecodeError."""
    _, items = read_microbatch(content, (0, len(content)))
    return list(map(in_own_memory, items))


def read_microbatch(content: bytes | memoryview, within: Extent) -> tuple[stage_daemon_pb2.Microbatch, list[RawItem]]:
    """The one that stands there, and its message. Of a large one the tensors' bytes are where they stand, and not in
    the message. Raises DecodeError."""
    start, end = within
    if end - start > LARGE_BYTES:
        with suppress(DecodeError):
            return _skim_microbatch(content, within)
    microbatch = stage_daemon_pb2.Microbatch.FromString(bytes(content[start:end]))
    return microbatch, raw_items(microbatch)


def _skim_microbatch(content: bytes | memoryview, within: Extent) -> tuple[stage_daemon_pb2.Microbatch, list[RawItem]]:
    skimmed = skim(content, _OF_INPUTS, within)
    microbatch, memory = stage_daemon_pb2.Microbatch.FromString(skimmed.message), memoryview(content)
    return microbatch, [
        replace(item, data=memory[start:end]) if isinstance(item, RawTensor) else item
        for item, (start, end) in zip(raw_items(microbatch), skimmed.data, strict=True)
    ]


def beside(items: Sequence[RawItem], payload: memoryview, end: int = 0) -> tuple[list[RawItem], list[Extent]]:
    """The items with their tensors' bytes from the payload, where the first begins behind `end`; and where they stand:
    scalars nowhere. Each begins at a multiple of 64 bytes; too few are there where the payload has no more."""
    placed: list[RawItem] = []
    extents: list[Extent] = []
    for item in items:
        begin = end
        if isinstance(item, RawTensor) and item.dtype is not None:
            begin = aligned(end)
            end = begin + math.prod(item.dims) * item.dtype.itemsize
            item = replace(item, data=payload[begin:end])
        placed.append(item)
        extents.append((begin, end))
    return placed, extents


def raw_items(microbatch: stage_daemon_pb2.Microbatch) -> list[RawItem]:
    return [_raw_item(datum) for datum in microbatch.values]


def _raw_item(datum: stage_daemon_pb2.Datum) -> RawItem:
    kind = datum.WhichOneof("kind")
    if kind == "tensor":
        return raw_tensor(datum.tensor)
    if kind == "integer":
        return datum.integer
    if kind == "floating":
        return datum.floating
    return datum.boolean if kind == "boolean" else None


def raw_tensor(tensor: stage_daemon_pb2.Tensor) -> RawTensor:
    return RawTensor(dtype=_TORCH_DTYPES.get(tensor.dtype), dims=tuple(tensor.dims), data=tensor.data)


def result_to_proto(
    result: Result, payloads: list[torch.Tensor] | None = None
) -> stage_daemon_pb2.ReceiveOutputsResponse:
    """With `payloads` the tensors' bytes, flat, go there and not into the message."""
    response = stage_daemon_pb2.ReceiveOutputsResponse(sequence=result.sequence)
    if result.failure is not None:
        response.failure.CopyFrom(failure_to_proto(result.failure))
        return response
    response.result.SetInParent()
    fill_all(response.result.values, result.items, payloads)
    return response


class Data(Protocol):
    """The repeated field of a message that holds Datum messages."""

    def add(self) -> stage_daemon_pb2.Datum: ...


def fill_all(data: Data, items: Iterable[Item], payloads: list[torch.Tensor] | None = None) -> None:
    """Built in place: a message that is assigned is serialized and parsed again."""
    for item in items:
        _fill(data.add(), item, payloads)


def result_to_bytes(result: Result, payloads: list[torch.Tensor]) -> bytes:
    """A serialized ReceiveOutputsResponse without the tensors' bytes, which go to `payloads`; a result that no message
    can hold becomes a failure."""
    try:
        return result_to_proto(result, payloads).SerializeToString()
    except _UNSENDABLE as error:
        payloads.clear()
        return _refusal(result, error)


def result_buffers(result: Result) -> list[bytes | memoryview]:
    """A serialized ReceiveOutputsResponse, to be sent buffer by buffer; each keeps the memory that it is of. A result
    that no message can hold becomes a failure."""
    payloads: list[torch.Tensor] = []
    try:
        response = result_to_proto(result, payloads)
        if not payloads:
            return [response.SerializeToString()]
        values = value_buffers(_VALUES, response.result.values, [payload.numpy().data for payload in payloads])
        response.ClearField("result")
        buffers = [response.SerializeToString(), *enclosed(_RESULT, values)]
        if (size_bytes := sum(map(len, buffers))) > MAX_MESSAGE_BYTES:
            raise ValueError(f"its {size_bytes:,} bytes, of the {MAX_MESSAGE_BYTES:,} that a message holds")
    except _UNSENDABLE as error:
        return [_refusal(result, error)]
    return buffers


def _refusal(result: Result, error: Exception) -> bytes:
    reason = error.reason if isinstance(error, InvalidRequest) else "RESULT_TOO_LARGE"
    failure = MicrobatchFailure(reason=reason, message=f"the result cannot be sent: {error}")
    failed = Result(session_id=result.session_id, sequence=result.sequence, failure=failure)
    return result_to_proto(failed).SerializeToString()


def failure_to_proto(failure: MicrobatchFailure) -> planner_pb2.Failure:
    return planner_pb2.Failure(
        reason=failure.reason, message=failure.message, stage=failure.stage, device_id=failure.device_id
    )


def _fill(datum: stage_daemon_pb2.Datum, item: Item, payloads: list[torch.Tensor] | None) -> None:
    if isinstance(item, bool):
        datum.boolean = item
    elif isinstance(item, int):
        datum.integer = item
    elif isinstance(item, float):
        datum.floating = item
    else:
        fill_tensor(datum.tensor, item, payloads)


def fill_tensor(
    message: stage_daemon_pb2.Tensor, tensor: torch.Tensor, payloads: list[torch.Tensor] | None = None
) -> None:
    message.dtype = wire_dtype(tensor.dtype)
    message.dims.extend(tensor.shape)
    flat = tensor.detach().resolve_conj().resolve_neg().cpu().contiguous().view(-1).view(torch.uint8)
    if payloads is not None:
        payloads.append(flat)
    else:
        message.data = flat.numpy().tobytes()


def wire_dtype(dtype: torch.dtype) -> graph_pb2.Dtype.ValueType:
    if dtype not in _WIRE_DTYPES:
        raise InvalidRequest(f"a tensor of {dtype}, which has no place on the wire; use another dtype")
    return _WIRE_DTYPES[dtype]


def kind_to_proto(kind: Kind) -> stage_daemon_pb2.ActionKind.ValueType:
    return _WIRE_ACTIONS[kind]


def metrics_to_proto(
    deployment_id: str, process_id: int, metrics: Mapping[int, StageMetrics], timelines: Sequence[Timeline]
) -> stage_daemon_pb2.GetDaemonStatusResponse:
    return stage_daemon_pb2.GetDaemonStatusResponse(
        stages=[
            stage_daemon_pb2.StageMetrics(
                deployment_id=deployment_id,
                stage=stage,
                num_microbatches=counted.num_microbatches,
                busy_seconds=sum(timeline.total_seconds(COMPUTE, stage) for timeline in timelines),
                receive_wait_seconds=sum(timeline.total_seconds(RECEIVES, stage) for timeline in timelines),
                send_wait_seconds=sum(timeline.total_seconds(SENDS, stage) for timeline in timelines),
                received_bytes=counted.received_bytes,
                sent_bytes=counted.sent_bytes,
                worker_process_id=process_id,
            )
            for stage, counted in sorted(metrics.items())
        ]
    )
