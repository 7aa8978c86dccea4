"""What a worker is told and what it gives back, from messages and to messages."""

from __future__ import annotations

import pytest
import torch
from google.protobuf import json_format
from hypothesis import given
from hypothesis import strategies as st

from planner.schedule import actions as planned
from protos.v1 import graph_pb2, stage_daemon_pb2
from stage_daemon.errors import InvalidMicrobatch, InvalidRequest
from stage_daemon.runtime.actions import Action, Kind
from stage_daemon.runtime.egress import Result
from stage_daemon.runtime.ingress import InputFormat, RawTensor
from stage_daemon.transport.declared import DimensionOperator, Operation, Symbol, SymbolReference, ValueKind
from stage_daemon.transport.parcel import Item, MicrobatchFailure
from stage_daemon.worker import wire
from tests.random_examples import random_examples

Wire = graph_pb2.Expression.Operation


RESULT_ITEMS: tuple[Item, ...] = (
    True,
    -3,
    0.5,
    torch.arange(6.0).view(2, 3).t(),
    torch.empty(0, 2),
    torch.tensor(7),
    torch.ones(3, dtype=torch.complex64).conj(),
    torch.rand(300, 500) > 0.5,
)


def response_of(result: Result) -> stage_daemon_pb2.ReceiveOutputsResponse:
    return stage_daemon_pb2.ReceiveOutputsResponse.FromString(b"".join(wire.result_buffers(result)))


def given_back(*items: Item) -> list[stage_daemon_pb2.Datum]:
    response = response_of(Result(session_id=1, sequence=7, items=items))
    assert (response.sequence, response.WhichOneof("content")) == (7, "result")
    return list(response.result.values)


def test_scalars_keep_their_kind() -> None:
    data = given_back(True, 1, 1.0, False, -(2**63))
    kinds = ["boolean", "integer", "floating", "boolean", "integer"]
    assert [datum.WhichOneof("kind") for datum in data] == kinds
    values = [getattr(datum, kind) for datum, kind in zip(data, kinds, strict=True)]
    assert values == [True, 1, 1.0, False, -(2**63)]


@pytest.mark.parametrize(
    "item",
    [
        torch.arange(6, dtype=torch.int16).reshape(2, 3),
        torch.arange(6.0).reshape(2, 3).t(),
        torch.tensor(2.5, dtype=torch.bfloat16),
        torch.empty(0, 3),
        torch.ones(2, requires_grad=True),
        torch.tensor([1 + 2j]).conj(),
        torch.tensor([True, False]),
    ],
    ids=lambda item: f"{item.dtype}{list(item.shape)}",
)
def test_tensors_come_back_as_they_were_sent(item: torch.Tensor) -> None:
    """What is given back can be sent again as an input."""
    [datum] = given_back(item)
    [raw] = wire.raw_items(stage_daemon_pb2.Microbatch(values=[datum]))
    assert isinstance(raw, RawTensor)
    assert (raw.dtype, raw.dims) == (item.dtype, tuple(item.shape))
    declared = wire.declared_from_proto(
        [
            stage_daemon_pb2.EdgeValue(
                value=1,
                kind=graph_pb2.VALUE_KIND_TENSOR,
                dtype=datum.tensor.dtype,
                dims=[graph_pb2.Expression(constant=dim) for dim in item.shape],
            )
        ]
    )
    read = InputFormat(values=declared, symbols={}).read([raw])
    assert torch.equal(read[0], item.detach().resolve_conj())


def test_a_bool_is_a_byte_of_0_or_of_anything_else() -> None:
    """torch computes nonsense from other bytes."""
    declared = wire.declared_from_proto(
        [
            stage_daemon_pb2.EdgeValue(
                kind=graph_pb2.VALUE_KIND_TENSOR,
                dtype=graph_pb2.DTYPE_BOOL,
                dims=[graph_pb2.Expression(constant=3)],
            )
        ]
    )
    raw = RawTensor(dtype=torch.bool, dims=(3,), data=b"\x00\x01\x02")
    [item] = InputFormat(values=declared, symbols={}).read([raw])
    assert item.view(torch.uint8).tolist() == [0, 1, 1]


def test_dims_that_torch_cannot_count_are_refused() -> None:
    declared = wire.declared_from_proto(
        [
            stage_daemon_pb2.EdgeValue(
                kind=graph_pb2.VALUE_KIND_TENSOR,
                dtype=graph_pb2.DTYPE_BOOL,
                dims=[graph_pb2.Expression(symbol=symbol) for symbol in range(3)],
            )
        ]
    )
    raw = RawTensor(dtype=torch.bool, dims=(1 << 62, 4, 0), data=b"")
    with pytest.raises(InvalidMicrobatch, match="at most 9223372036854775807 elements"):
        InputFormat(values=declared, symbols={}).read([raw])


def test_a_result_that_no_message_can_hold_is_a_failure() -> None:
    response = response_of(Result(session_id=1, sequence=7, items=(torch.ones(1, dtype=torch.uint16),)))
    assert response.sequence == 7
    assert response.failure.reason == "INVALID_ARGUMENT"
    assert "a tensor of torch.uint16" in response.failure.message
    large = response_of(Result(session_id=1, sequence=8, items=(2**63,)))
    assert (large.sequence, large.failure.reason) == (8, "RESULT_TOO_LARGE")


def test_a_result_of_more_than_a_message_holds_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    result = Result(session_id=1, sequence=7, items=(torch.ones(100),))
    size_bytes = sum(map(len, wire.result_buffers(result)))
    monkeypatch.setattr(wire, "MAX_MESSAGE_BYTES", size_bytes)
    assert response_of(result).HasField("result")
    monkeypatch.setattr(wire, "MAX_MESSAGE_BYTES", size_bytes - 1)
    response = response_of(result)
    assert (response.sequence, response.failure.reason) == (7, "RESULT_TOO_LARGE")
    assert f"its {size_bytes} bytes, of the {size_bytes - 1} that a message holds" in response.failure.message


@random_examples(100)
@given(st.lists(st.sampled_from(RESULT_ITEMS), max_size=5))
def test_results_are_what_the_serializer_makes(items: list[Item]) -> None:
    result = Result(session_id=1, sequence=7, items=tuple(items))
    assert response_of(result) == wire.result_to_proto(result)


@pytest.mark.parametrize("large_bytes", [0, 1 << 18])
def test_inputs_are_read_alike_with_and_without_the_parser(monkeypatch: pytest.MonkeyPatch, large_bytes: int) -> None:
    monkeypatch.setattr(wire, "LARGE_BYTES", large_bytes)
    x = torch.arange(10.0).view(2, 5)
    microbatch = stage_daemon_pb2.Microbatch(sequence=3)
    wire.fill_all(microbatch.values, (True, x, torch.empty(0, 4), 7, x > 3))
    flag, first, empty, number, flags = wire.read_inputs(microbatch.SerializeToString())
    assert (flag, number) == (True, 7)
    for item, tensor in ((first, x), (empty, torch.empty(0, 4)), (flags, x > 3)):
        assert isinstance(item, RawTensor)
        assert (item.dtype, item.dims, bytes(item.data)) == (
            tensor.dtype,
            tuple(tensor.shape),
            tensor.numpy().tobytes(),
        )
    if not large_bytes:
        assert isinstance(first, RawTensor)
        assert torch.frombuffer(first.data, dtype=torch.float32).data_ptr() % 64 == 0


def test_a_failure_keeps_its_stage_and_device() -> None:
    failure = MicrobatchFailure(reason="STAGE_FAILED", message="why", stage=0, device_id="node0/cpu")
    response = wire.result_to_proto(Result(session_id=1, sequence=7, failure=failure))
    assert response.failure.HasField("stage")
    assert (response.failure.reason, response.failure.message) == ("STAGE_FAILED", "why")
    assert (response.failure.stage, response.failure.device_id) == (0, "node0/cpu")


def test_values_that_came_as_nothing_or_as_an_unknown_dtype() -> None:
    tensor = stage_daemon_pb2.Tensor(dtype=999, dims=[2], data=b"ab")
    values = [stage_daemon_pb2.Datum(), stage_daemon_pb2.Datum(tensor=tensor), stage_daemon_pb2.Datum(boolean=False)]
    assert wire.raw_items(stage_daemon_pb2.Microbatch(values=values)) == [
        None,
        RawTensor(dtype=None, dims=(2,), data=b"ab"),
        False,
    ]


def test_lanes_keep_their_order() -> None:
    lane = stage_daemon_pb2.Lane(
        actions=[
            stage_daemon_pb2.Action(kind=stage_daemon_pb2.ACTION_KIND_RECEIVE, index=3),
            stage_daemon_pb2.Action(kind=stage_daemon_pb2.ACTION_KIND_FORWARD, index=2, microbatch=0),
            stage_daemon_pb2.Action(kind=stage_daemon_pb2.ACTION_KIND_SEND, index=1, microbatch=4),
        ]
    )
    assert wire.lane_from_proto(lane) == (
        Action(Kind.RECEIVE, 3),
        Action(Kind.FORWARD, 2, 0),
        Action(Kind.SEND, 1, 4),
    )
    lane.actions.add()
    with pytest.raises(InvalidRequest, match="an action of no known kind"):
        wire.lane_from_proto(lane)


def test_planner_and_daemon_know_the_same_actions() -> None:
    kinds = [kind.name for kind in planned.Kind]
    assert [kind.name for kind in Kind] == kinds
    assert [name.removeprefix("ACTION_KIND_") for name in stage_daemon_pb2.ActionKind.keys()[1:]] == kinds


def test_every_operator_of_a_dimension_is_known() -> None:
    for name, number in Wire.Operator.items():
        if number:
            operation = Wire(operator=number, operands=[graph_pb2.Expression(symbol=4)] * 2)
            value = stage_daemon_pb2.EdgeValue(
                kind=graph_pb2.VALUE_KIND_TENSOR,
                dtype=graph_pb2.DTYPE_INT8,
                dims=[graph_pb2.Expression(operation=operation)],
            )
            [declared] = wire.declared_from_proto([value])
            operator = DimensionOperator[name.removeprefix("OPERATOR_")]
            assert declared.dims == (Operation(operator, (SymbolReference(4),) * 2),)


@pytest.mark.parametrize(
    ("operation", "message"),
    [
        ({"operator": "OPERATOR_FLOOR_DIVIDE", "operands": [{"symbol": 4}]}, "1 operands of floor_divide, needs 2"),
        ({"operator": "OPERATOR_ADD"}, "0 operands of add, needs at least 1"),
        ({}, "operator 0, needs a known one"),
    ],
)
def test_a_dimension_that_cannot_be_computed_is_refused(operation: dict[str, object], message: str) -> None:
    value = json_format.ParseDict(
        {"name": "x", "kind": "VALUE_KIND_TENSOR", "dtype": "DTYPE_FLOAT32", "dims": [{"operation": operation}]},
        stage_daemon_pb2.EdgeValue(),
    )
    with pytest.raises(InvalidRequest, match=f"'x': a dimension with {message}"):
        wire.declared_from_proto([value])


def test_scalars_are_declared_by_kind_and_other_values_are_refused() -> None:
    value = stage_daemon_pb2.EdgeValue(value=3, name="n", kind=graph_pb2.VALUE_KIND_SYM_BOOL)
    [declared] = wire.declared_from_proto([value])
    assert (declared.value_id, declared.name, declared.kind) == (3, "n", ValueKind.BOOLEAN)
    value.kind = graph_pb2.VALUE_KIND_UNSPECIFIED
    with pytest.raises(InvalidRequest, match="value 'n': kind VALUE_KIND_UNSPECIFIED, needs a tensor or a scalar"):
        wire.declared_from_proto([value])


def test_symbols_without_an_upper_bound_have_none() -> None:
    symbols = [graph_pb2.Symbol(id=1, name="a", lower=2, upper=0), graph_pb2.Symbol(id=2, name="b", lower=1)]
    assert wire.symbols_from_proto(symbols) == {
        1: Symbol(id=1, name="a", lower=2, upper=0),
        2: Symbol(id=2, name="b", lower=1, upper=None),
    }
