"""Microbatches on the wire: a graph's non-constant inputs and outputs, in order.

Datum messages are built in place: one that is assigned is serialized and parsed again.
"""

from __future__ import annotations

import contextlib
import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

import numpy as np
from google.protobuf.message import DecodeError

from access.ring import aligned
from access.tensor_fields import LARGE_BYTES, Numbers, enclosed, skim, split, value_buffers
from planner.client.tensors import (
    Outline,
    RawTensor,
    TensorKind,
    from_raw,
    kind_of,
    loaded_torch,
    memory_of,
    plain_outline,
    to_raw,
    torch_in,
)
from planner.errors import GraphError, InvalidArgument
from planner.graph.expression import SymbolReference, evaluate
from planner.graph.ir import Dtype, Graph, Input, Output, Symbol, Value, ValueKind, ValueReference
from protos.v1 import graph_pb2, stage_daemon_pb2

_MICROBATCH = stage_daemon_pb2.SendInputsRequest.DESCRIPTOR.fields_by_name["microbatch"].number
_RESULT = stage_daemon_pb2.ReceiveOutputsResponse.DESCRIPTOR.fields_by_name["result"].number
_OF_INPUTS = Numbers.of(stage_daemon_pb2.Microbatch.DESCRIPTOR.fields_by_name["values"])
_OF_RESULTS = Numbers.of(stage_daemon_pb2.MicrobatchResult.DESCRIPTOR.fields_by_name["values"])

# Shapes that are remembered at the same time.
_MAX_SHAPES = 256

Scalar = int | float | bool
Item = RawTensor | Scalar

_Key = TypeVar("_Key")
_Known = TypeVar("_Known")


class Data(Protocol):
    """The repeated field of a message that holds Datum messages."""

    def add(self) -> stage_daemon_pb2.Datum: ...


def carried(entries: Sequence[Input] | Sequence[Output]) -> tuple[tuple[str, int], ...]:
    """(name, value id) of the entries that are no constants, in order: what a microbatch holds."""
    return tuple((entry.name, entry.content.value_id) for entry in entries if isinstance(entry.content, ValueReference))


class InputEncoder:
    """Checks leaves against what the graph declares before they are sent; errors name the input."""

    def __init__(self, graph: Graph) -> None:
        values = graph.values_by_id()
        self._inputs = tuple((name, values[value_id]) for name, value_id in carried(graph.inputs))
        self._symbols = {symbol.id: symbol for symbol in graph.symbols}
        # What was checked of tensors that are sent from their own memory.
        self._checked: dict[tuple[Outline | None, ...], tuple[tuple[Dtype, tuple[int, ...]], ...]] = {}

    def encode(self, leaves: Sequence[object]) -> list[Item]:
        outlines = tuple(map(plain_outline, leaves))
        checked = self._checked.get(outlines)
        if checked is not None:
            return [
                RawTensor(dtype=dtype, dims=dims, data=memory_of(leaf))
                for (dtype, dims), leaf in zip(checked, leaves, strict=True)
            ]
        items = self._encode_all(leaves)
        if None not in outlines:
            _remember(self._checked, outlines, tuple((i.dtype, i.dims) for i in items if isinstance(i, RawTensor)))
        return items

    def _encode_all(self, leaves: Sequence[object]) -> list[Item]:
        if len(leaves) != len(self._inputs):
            raise InvalidArgument(f"{len(leaves)} inputs found, the graph takes {len(self._inputs)}: {self._names()}")
        sizes: dict[int, int] = {}
        return [
            self._encode(name, value, leaf, sizes) for (name, value), leaf in zip(self._inputs, leaves, strict=True)
        ]

    def _encode(self, name: str, value: Value, leaf: object, sizes: dict[int, int]) -> Item:
        try:
            if value.kind is not ValueKind.TENSOR:
                return _encode_scalar(value.kind, leaf)
            assert value.dtype is not None
            raw = to_raw(leaf, value.dtype)
            self._check_dims(value, raw.dims, sizes)
        except InvalidArgument as error:
            raise InvalidArgument(f"input {name!r}: {error.message}", input=name) from None
        return raw

    def _check_dims(self, value: Value, dims: tuple[int, ...], sizes: dict[int, int]) -> None:
        if dims == value.dims:
            return
        if len(dims) != len(value.dims):
            raise InvalidArgument(f"dims {list(dims)} found, {len(value.dims)} dimensions needed")
        for index, (size, declared) in enumerate(zip(dims, value.dims, strict=True)):
            if isinstance(declared, SymbolReference):
                _check_symbol(self._symbols[declared.symbol_id], index, size, sizes)
                continue
            try:
                needed = evaluate(declared, sizes)
            except GraphError:
                continue  # of symbols that a later input fixes: the daemon checks those
            if size != needed:
                raise InvalidArgument(
                    f"dimension {index} is {size}, needs {needed}; export with dynamic_shapes to let it change"
                )

    def _names(self) -> str:
        return ", ".join(name for name, _ in self._inputs) or "none"


def kind_of_batch(leaves: Sequence[object]) -> TensorKind:
    """How results are given back: as the batch's tensors are held; torch if it has none and torch is loaded."""
    if leaves and kind_of(leaves[0]) is TensorKind.TORCH:
        return TensorKind.TORCH
    kinds = set(map(kind_of, leaves))
    for kind in (TensorKind.TORCH, TensorKind.NUMPY, TensorKind.RAW):
        if kind in kinds:
            return kind
    return TensorKind.TORCH if loaded_torch() is not None else TensorKind.NUMPY


def fill(data: Data, items: Sequence[Item], payloads: list[memoryview] | None = None) -> None:
    """Adds each item to a message's values. With `payloads` the tensors' bytes go there and not into the message."""
    for item in items:
        datum = data.add()
        if isinstance(item, bool):
            datum.boolean = item
        elif isinstance(item, int):
            datum.integer = item
        elif isinstance(item, float):
            datum.floating = item
        else:
            fill_tensor(datum.tensor, item, payloads)


def request_bytes(sequence: int, items: Sequence[Item]) -> bytes:
    """A serialized SendInputsRequest; each tensor's bytes are copied once."""
    return b"".join(enclosed(_MICROBATCH, microbatch_buffers(sequence, items)))


def microbatch_buffers(sequence: int, items: Sequence[Item]) -> list[bytes | memoryview]:
    """A serialized Microbatch, with the tensors' bytes where they are."""
    microbatch = stage_daemon_pb2.Microbatch()
    payloads: list[memoryview] = []
    fill(microbatch.values, items, payloads)
    sequence_field = stage_daemon_pb2.Microbatch(sequence=sequence).SerializeToString()
    return [sequence_field, *value_buffers(_OF_INPUTS, microbatch.values, payloads)]


def fill_tensor(message: stage_daemon_pb2.Tensor, tensor: RawTensor, payloads: list[memoryview] | None = None) -> None:
    message.dtype = graph_pb2.Dtype.Value(f"DTYPE_{tensor.dtype.name}")
    message.dims.extend(tensor.dims)
    if payloads is not None:
        payloads.append(memoryview(tensor.data))
    else:
        message.data = bytes(tensor.data)


class MessageWriter:
    """Messages of microbatches whose tensors lie beside them. What a message says follows from the tensors' shapes, so
    that of a shape is made once."""

    def __init__(self) -> None:
        self._messages: dict[tuple[object, ...], bytes] = {}

    def message(self, items: Sequence[Item]) -> tuple[bytes, list[memoryview]]:
        """Without the sequence; and the tensors' bytes."""
        payloads = [memoryview(item.data) for item in items if isinstance(item, RawTensor)]
        # Scalars stand in the message itself, and two that are equal need not be the same: 0.0 and -0.0.
        if len(payloads) < len(items):
            return _message(items), payloads
        key = tuple([(item.dtype, item.dims) for item in items if isinstance(item, RawTensor)])
        message = self._messages.get(key)
        if message is None:
            message = _message(items)
            _remember(self._messages, key, message)
        return message, payloads


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Of a tensor in the bytes beside its message."""

    dtype: Dtype
    dims: tuple[int, ...]
    begin: int
    end: int
    num_elements: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultMessage:
    """A result as it is read. Where its tensors lie beside it, `places` says where, and has its scalars."""

    response: stage_daemon_pb2.ReceiveOutputsResponse
    places: tuple[Place | Scalar, ...]


class MessageReader:
    """Of results whose tensors lie beside them: the same message is read once."""

    def __init__(self) -> None:
        self._results: dict[bytes, ResultMessage] = {}

    def read(self, message: bytes) -> ResultMessage:
        result = self._results.get(message)
        if result is None:
            response = stage_daemon_pb2.ReceiveOutputsResponse.FromString(message)
            result = ResultMessage(response=response, places=_places(response.result.values))
            _remember(self._results, message, result)
        return result


def read_response(content: bytes) -> tuple[ResultMessage, memoryview | None]:
    """Of a serialized ReceiveOutputsResponse. The tensors of a large result come beside it, in memory of their own."""
    if len(content) > LARGE_BYTES:
        with contextlib.suppress(DecodeError):
            return _beside(content)
    return ResultMessage(response=stage_daemon_pb2.ReceiveOutputsResponse.FromString(content), places=()), None


def _beside(content: bytes) -> tuple[ResultMessage, memoryview]:
    rest, extent = split(content, _RESULT)
    skimmed = skim(content, _OF_RESULTS, extent)
    response = stage_daemon_pb2.ReceiveOutputsResponse.FromString(rest)
    if response.WhichOneof("content") is not None:
        raise DecodeError("a result and something else")
    response.result.MergeFromString(skimmed.message)
    places = _places(response.result.values)
    tensors = [(place, data) for place, data in zip(places, skimmed.data, strict=True) if isinstance(place, Place)]
    # Before memory is made for what the dims say.
    if any(place.end - place.begin != end - begin for place, (begin, end) in tensors):
        raise DecodeError("other bytes than a tensor's dims say")
    payload = np.empty(tensors[-1][0].end if tensors else 0, dtype=np.uint8).data
    for place, (begin, end) in tensors:
        payload[place.begin : place.end] = memoryview(content)[begin:end]
    return ResultMessage(response=response, places=places), payload


def decode(data: Sequence[stage_daemon_pb2.Datum], kind: TensorKind) -> list[object]:
    """The tensors' bytes are in the messages."""
    return [
        from_raw(RawTensor(dtype=item[0], dims=item[1], data=datum.tensor.data), kind)
        if isinstance(item, tuple)
        else item
        for datum, item in ((datum, _item(datum)) for datum in data)
    ]


def decode_beside(places: Sequence[Place | Scalar], kind: TensorKind, payload: memoryview) -> list[object]:
    return [_tensor_beside(place, kind, payload) if isinstance(place, Place) else place for place in places]


def _tensor_beside(place: Place, kind: TensorKind, payload: memoryview) -> object:
    if kind is TensorKind.TORCH and place.begin < place.end <= len(payload):
        return torch_in(payload, place.begin, place.num_elements, place.dtype, place.dims)
    return from_raw(RawTensor(dtype=place.dtype, dims=place.dims, data=payload[place.begin : place.end]), kind)


def _places(data: Sequence[stage_daemon_pb2.Datum]) -> tuple[Place | Scalar, ...]:
    """Each tensor from a multiple of 64 bytes on."""
    places: list[Place | Scalar] = []
    end = 0
    for item in map(_item, data):
        if not isinstance(item, tuple):
            places.append(item)
            continue
        dtype, dims = item
        begin = aligned(end)
        num_elements = math.prod(dims)
        end = begin + num_elements * dtype.size_bytes
        places.append(Place(dtype=dtype, dims=dims, begin=begin, end=end, num_elements=num_elements))
    return tuple(places)


def _item(datum: stage_daemon_pb2.Datum) -> tuple[Dtype, tuple[int, ...]] | Scalar:
    """A scalar, or the dtype and dims of a tensor."""
    kind = datum.WhichOneof("kind")
    if kind == "tensor":
        dtype = Dtype[graph_pb2.Dtype.Name(datum.tensor.dtype).removeprefix("DTYPE_")]
        return dtype, tuple(datum.tensor.dims)
    if kind is None:
        raise InvalidArgument("the daemon sent a result without content; its version does not fit this client's")
    scalar: Scalar = getattr(datum, kind)
    return scalar


def _message(items: Sequence[Item]) -> bytes:
    message = stage_daemon_pb2.Microbatch()
    fill(message.values, items, [])
    return message.SerializeToString()


def _remember(cache: dict[_Key, _Known], key: _Key, value: _Known) -> None:
    if len(cache) >= _MAX_SHAPES:
        cache.clear()
    cache[key] = value


def _check_symbol(symbol: Symbol, index: int, size: int, sizes: dict[int, int]) -> None:
    if size < symbol.lower or (symbol.upper is not None and size > symbol.upper):
        upper = "" if symbol.upper is None else f" and at most {symbol.upper}"
        raise InvalidArgument(f"dimension {index} ({symbol.name}) is {size}, needs at least {symbol.lower}{upper}")
    if sizes.setdefault(symbol.id, size) != size:
        raise InvalidArgument(
            f"dimension {index} ({symbol.name}) is {size}, an input before it has {sizes[symbol.id]} there"
        )


def _encode_scalar(kind: ValueKind, leaf: object) -> int | float | bool:
    if kind is ValueKind.SYM_BOOL and isinstance(leaf, bool):
        return leaf
    if kind is ValueKind.SYM_FLOAT and isinstance(leaf, (int, float)):
        return float(leaf)
    if kind is ValueKind.SYM_INT and not isinstance(leaf, bool):
        try:
            return operator.index(leaf)  # type: ignore[arg-type]
        except TypeError:
            pass
    raise InvalidArgument(f"{type(leaf).__name__} found, {kind.value.removeprefix('sym_')} needed")
