"""What a microbatch may hold: sizes that belong together, numbers of each kind, results of each kind."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest
import torch

from planner.client import microbatches
from planner.client.microbatches import (
    InputEncoder,
    Item,
    MessageWriter,
    carried,
    decode,
    decode_beside,
    fill,
    kind_of_batch,
    read_response,
    request_bytes,
)
from planner.client.tensors import RawTensor, TensorKind
from planner.errors import InvalidArgument
from planner.graph.expression import ExpressionOperator, Operation, SymbolReference
from planner.graph.ir import Dtype, Graph, Input, Output, Symbol, TreeTuple, Value, ValueKind, ValueReference
from protos.v1 import graph_pb2, stage_daemon_pb2

BATCH, WIDTH = SymbolReference(1), SymbolReference(2)
TWICE = Operation(ExpressionOperator.MULTIPLY, (2, BATCH))


def graph(*values: Value) -> Graph:
    return Graph(
        torch_version="",
        name="",
        symbols=(
            Symbol(id=1, name="batch", lower=2, upper=None, hint=2),
            Symbol(id=2, name="width", lower=1, upper=9, hint=2),
        ),
        values=values,
        inputs=tuple(Input(name=value.name, content=ValueReference(value.id)) for value in values),
        input_tree=TreeTuple(()),
    )


def tensor(value_id: int, name: str, *dims: Any) -> Value:
    return Value(id=value_id, kind=ValueKind.TENSOR, dtype=Dtype.FLOAT32, dims=dims, name=name)


def encoded(encoder: InputEncoder, leaves: list[object]) -> list[stage_daemon_pb2.Datum]:
    message = stage_daemon_pb2.Microbatch()
    fill(message.values, encoder.encode(leaves))
    return list(message.values)


def zeros(*dims: int) -> np.ndarray:
    return np.zeros(dims, dtype=np.float32)


def test_only_what_is_no_constant_travels() -> None:
    entries = (
        Input(name="a", content=ValueReference(3)),
        Input(name="flag", content=True),
        Input(name="n", content=None),
    )
    assert carried(entries) == (("a", 3),)
    assert carried((Output(name="y", content=ValueReference(1)),)) == (("y", 1),)


def test_a_tensor_travels_with_its_dtype_dims_and_bytes() -> None:
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    [datum] = encoded(InputEncoder(graph(tensor(1, "x", BATCH, 3))), [array])
    assert datum.tensor.dtype == graph_pb2.DTYPE_FLOAT32
    assert list(datum.tensor.dims) == [2, 3]
    assert datum.tensor.data == array.tobytes()
    [back] = decode([datum], TensorKind.NUMPY)
    np.testing.assert_array_equal(back, array)


@pytest.mark.parametrize(
    ("leaves", "says"),
    [
        ([zeros(2, 3)], r"1 inputs found, the graph takes 2: x, y"),
        ([zeros(1, 3), zeros(2, 3)], r"input 'x': dimension 0 \(batch\) is 1, needs at least 2$"),
        ([zeros(2, 10), zeros(4, 10)], r"input 'x': dimension 1 \(width\) is 10, needs at least 1 and at most 9"),
        ([zeros(2, 3), zeros(4, 4)], r"input 'y': dimension 1 \(width\) is 4, an input before it has 3 there"),
        ([zeros(2, 3), zeros(5, 3)], "input 'y': dimension 0 is 5, needs 4; export with dynamic_shapes"),
        ([zeros(2, 3), zeros(4)], r"input 'y': dims \[4\] found, 2 dimensions needed"),
        ([zeros(2, 3), [1.0]], "input 'y': list found, a float32 tensor or array needed"),
    ],
)
def test_sizes_that_do_not_belong_together_are_refused(leaves: list[object], says: str) -> None:
    encoder = InputEncoder(graph(tensor(1, "x", BATCH, WIDTH), tensor(2, "y", TWICE, WIDTH)))
    with pytest.raises(InvalidArgument, match=says) as raised:
        encoder.encode(leaves)
    assert raised.value.metadata == ({} if "inputs found" in says else {"input": says[7]})


def test_sizes_are_checked_for_each_microbatch_anew() -> None:
    encoder = InputEncoder(graph(tensor(1, "x", BATCH)))
    for size in (2, 3, 1000):
        assert list(encoded(encoder, [zeros(size)])[0].tensor.dims) == [size]


def test_what_was_checked_once_holds_for_tensors_of_the_same_dtypes_and_dims_alone() -> None:
    torch = pytest.importorskip("torch")
    encoder = InputEncoder(graph(tensor(1, "x", BATCH, WIDTH), tensor(2, "y", TWICE, WIDTH)))
    for start in (0.0, 7.0):
        batch = [torch.arange(start, start + 6).view(2, 3), torch.full((4, 3), start)]
        sent = [decode(encoded(encoder, leaves), TensorKind.TORCH) for leaves in (batch, [batch[0].flip(0), batch[1]])]
        assert all(map(torch.equal, sent[0], batch))
        assert torch.equal(sent[1][0], batch[0].flip(0))
        # Not as it lies in memory.
        [turned, _] = decode(encoded(encoder, [torch.arange(6.0).view(3, 2).t(), batch[1]]), TensorKind.TORCH)
        assert torch.equal(turned, torch.arange(6.0).view(3, 2).t())
        for leaves in ([batch[0].int(), batch[1]], [batch[0], batch[1][:3]], batch[:1], [batch[0], None]):
            with pytest.raises(InvalidArgument):
                encoder.encode(leaves)


def test_bounds_themselves_are_allowed() -> None:
    encoder = InputEncoder(graph(tensor(1, "x", BATCH, WIDTH)))
    for dims in ((2, 1), (2, 9)):
        encoder.encode([zeros(*dims)])


def test_a_size_that_a_later_input_fixes_is_left_to_the_daemon() -> None:
    encoder = InputEncoder(graph(tensor(1, "x", TWICE), tensor(2, "y", BATCH)))
    assert len(encoder.encode([zeros(7), zeros(3)])) == 2


def test_a_graph_without_inputs_takes_none() -> None:
    encoder = InputEncoder(graph())
    assert encoder.encode([]) == []
    with pytest.raises(InvalidArgument, match="1 inputs found, the graph takes 0: none"):
        encoder.encode([1])


@pytest.mark.parametrize(
    ("kind", "leaf", "field", "value"),
    [
        (ValueKind.SYM_INT, 2**53 + 1, "integer", 2**53 + 1),
        (ValueKind.SYM_INT, np.int64(-3), "integer", -3),
        (ValueKind.SYM_INT, torch.tensor(5), "integer", 5),
        (ValueKind.SYM_FLOAT, 1.5, "floating", 1.5),
        (ValueKind.SYM_FLOAT, 2, "floating", 2.0),
        (ValueKind.SYM_BOOL, True, "boolean", True),
        (ValueKind.SYM_BOOL, False, "boolean", False),
    ],
)
def test_numbers_travel_as_what_the_graph_takes(kind: ValueKind, leaf: object, field: str, value: object) -> None:
    [datum] = encoded(InputEncoder(graph(Value(id=1, kind=kind, name="n"))), [leaf])
    assert datum.WhichOneof("kind") == field
    assert decode([datum], TensorKind.NUMPY) == [value]


@pytest.mark.parametrize(
    ("kind", "leaf", "says"),
    [
        (ValueKind.SYM_INT, True, "bool found, int needed"),
        (ValueKind.SYM_INT, 1.0, "float found, int needed"),
        (ValueKind.SYM_INT, "1", "str found, int needed"),
        (ValueKind.SYM_BOOL, 1, "int found, bool needed"),
        (ValueKind.SYM_FLOAT, "1", "str found, float needed"),
    ],
)
def test_numbers_are_not_converted(kind: ValueKind, leaf: object, says: str) -> None:
    with pytest.raises(InvalidArgument, match=f"input 'n': {says}"):
        InputEncoder(graph(Value(id=1, kind=kind, name="n"))).encode([leaf])


RAW = RawTensor(dtype=Dtype.UINT8, dims=(1,), data=b"x")


@pytest.mark.parametrize(
    ("leaves", "kind"),
    [
        ([np.zeros(1), torch.zeros(1)], TensorKind.TORCH),
        ([1, np.zeros(1)], TensorKind.NUMPY),
        ([np.float32(1), RAW], TensorKind.NUMPY),
        ([RAW], TensorKind.RAW),
        ([1, "x"], TensorKind.TORCH),
        ([], TensorKind.TORCH),
    ],
)
def test_results_are_held_as_the_batch_is(leaves: list[object], kind: TensorKind) -> None:
    assert kind_of_batch(leaves) is kind


def test_results_are_arrays_where_torch_is_not_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "torch")
    assert kind_of_batch([1]) is TensorKind.NUMPY
    assert kind_of_batch([object()]) is TensorKind.NUMPY


def test_a_result_without_content_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="without content; its version does not fit"):
        decode([stage_daemon_pb2.Datum()], TensorKind.NUMPY)


def test_each_dtype_has_a_name_on_the_wire() -> None:
    for dtype in Dtype:
        value = Value(id=1, kind=ValueKind.TENSOR, dtype=dtype, dims=(2,), name="x")
        raw = RawTensor(dtype=dtype, dims=(2,), data=bytes(2 * dtype.size_bytes))
        assert decode(encoded(InputEncoder(graph(value)), [raw]), TensorKind.RAW) == [raw]


@pytest.mark.parametrize("scalar", [0.0, -0.0, 1, 1.0, True])
def test_messages_of_one_shape_have_their_own_scalars(scalar: float) -> None:
    writer = MessageWriter()
    raw = RawTensor(dtype=Dtype.FLOAT32, dims=(2,), data=bytes(8))
    for items in ([raw, 0.0], [raw, 1], [raw], [raw, scalar], [raw, scalar]):
        message, payloads = writer.message(items)
        expected = stage_daemon_pb2.Microbatch()
        fill(expected.values, items, [])
        assert message == expected.SerializeToString()
        assert payloads == [bytes(8)]


ITEMS: tuple[Item, ...] = (
    RawTensor(dtype=Dtype.FLOAT32, dims=(2, 3), data=np.arange(6, dtype="<f4").tobytes()),
    RawTensor(dtype=Dtype.INT8, dims=(0, 3), data=b""),
    RawTensor(dtype=Dtype.BOOL, dims=(5,), data=b"\0\1\0\1\1"),
    7,
    -0.0,
    True,
)


def test_a_request_is_what_the_serializer_makes() -> None:
    request = stage_daemon_pb2.SendInputsRequest()
    request.microbatch.sequence = 3
    fill(request.microbatch.values, ITEMS)
    assert stage_daemon_pb2.SendInputsRequest.FromString(request_bytes(3, ITEMS)) == request


@pytest.mark.parametrize("large_bytes", [0, 1 << 18])
def test_a_result_is_read_alike_with_and_without_the_parser(monkeypatch: pytest.MonkeyPatch, large_bytes: int) -> None:
    monkeypatch.setattr(microbatches, "LARGE_BYTES", large_bytes)
    response = stage_daemon_pb2.ReceiveOutputsResponse(sequence=9)
    fill(response.result.values, ITEMS)
    result, payload = read_response(response.SerializeToString())
    assert (result.response.sequence, result.response.WhichOneof("content")) == (9, "result")
    if large_bytes:
        assert payload is None
        values = decode(result.response.result.values, TensorKind.NUMPY)
    else:
        assert payload is not None
        values = decode_beside(result.places, TensorKind.NUMPY, payload)
    for value, expected in zip(values, decode(response.result.values, TensorKind.NUMPY), strict=True):
        np.testing.assert_array_equal(np.asarray(value), np.asarray(expected), strict=True)
    first = values[0]
    assert isinstance(first, np.ndarray)
    first[0, 0] = 5.0  # Memory of its own.


def test_a_large_result_that_says_a_field_twice_is_for_the_parser(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(microbatches, "LARGE_BYTES", 0)
    response = stage_daemon_pb2.ReceiveOutputsResponse(sequence=9)
    fill(response.result.values, ITEMS[3:])
    result, payload = read_response(2 * response.SerializeToString())
    assert payload is None
    assert decode(result.response.result.values, TensorKind.NUMPY) == 2 * [7, -0.0, True]


def test_a_failure_is_read_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(microbatches, "LARGE_BYTES", 0)
    response = stage_daemon_pb2.ReceiveOutputsResponse(sequence=9)
    response.failure.message = "why"
    result, payload = read_response(response.SerializeToString())
    assert (result.response, payload) == (response, None)


@pytest.mark.parametrize("dims", [(1 << 62,), (1 << 31, 1 << 31)])
def test_a_large_result_makes_no_memory_for_dims_that_its_bytes_do_not_have(
    monkeypatch: pytest.MonkeyPatch, dims: tuple[int, ...]
) -> None:
    monkeypatch.setattr(microbatches, "LARGE_BYTES", 0)
    response = stage_daemon_pb2.ReceiveOutputsResponse(sequence=9)
    fill(response.result.values, ITEMS[2:3])
    response.result.values[0].tensor.dims[:] = dims
    result, payload = read_response(response.SerializeToString())
    assert (result.response, payload) == (response, None)
    with pytest.raises(InvalidArgument, match="5 bytes, needs"):
        decode(result.response.result.values, TensorKind.NUMPY)


def test_what_says_a_result_and_then_a_failure_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(microbatches, "LARGE_BYTES", 0)
    response = stage_daemon_pb2.ReceiveOutputsResponse(sequence=9)
    fill(response.result.values, ITEMS)
    failed = stage_daemon_pb2.ReceiveOutputsResponse()
    failed.failure.message = "why"
    result, payload = read_response(response.SerializeToString() + failed.SerializeToString())
    assert (result.response.WhichOneof("content"), payload) == ("failure", None)
