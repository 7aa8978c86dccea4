"""Operator arguments to messages and back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from planner.errors import GraphError
from planner.graph.ir import (
    Argument,
    ArgumentList,
    DeviceClass,
    Dtype,
    Layout,
    MemoryFormat,
    SubgraphReference,
    ValueReference,
)
from planner.wire.graph.bounds import check_depth, check_length
from planner.wire.graph.enumerations import DTYPES, LAYOUTS, MEMORY_FORMATS
from protos.v1 import graph_pb2

INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1


def argument_to_proto(argument: Argument, depth: int = 0) -> graph_pb2.Argument:
    """Raises GraphError for an integer outside 64 bits, or an argument nested too deep."""
    check_depth("argument", depth)
    if isinstance(argument, ArgumentList):
        return graph_pb2.Argument(list=_sequence(argument.items, depth))
    if isinstance(argument, tuple):
        return graph_pb2.Argument(tuple=_sequence(argument, depth))
    return _ENCODE[type(argument)](argument)


def argument_from_proto(message: graph_pb2.Argument, depth: int = 0) -> Argument:
    """Raises GraphError for an empty argument or one nested too deep."""
    check_depth("argument", depth)
    kind = message.WhichOneof("kind")
    if kind is None:
        raise GraphError("argument is empty")
    if kind == "list":
        return ArgumentList(_items(message.list, depth))
    if kind == "tuple":
        return _items(message.tuple, depth)
    return _DECODE[kind](getattr(message, kind))


def _items(sequence: graph_pb2.ArgumentSequence, depth: int) -> tuple[Argument, ...]:
    check_length("items of an argument", sequence.items)
    return tuple(argument_from_proto(item, depth + 1) for item in sequence.items)


def _sequence(items: tuple[Argument, ...], depth: int) -> graph_pb2.ArgumentSequence:
    return graph_pb2.ArgumentSequence(items=[argument_to_proto(item, depth + 1) for item in items])


def _integer(value: int) -> graph_pb2.Argument:
    if not INT64_MIN <= value <= INT64_MAX:
        raise GraphError(f"argument {value} does not fit 64 bits")
    return graph_pb2.Argument(integer=value)


_ENCODE: Mapping[type, Callable[[Any], graph_pb2.Argument]] = {
    type(None): lambda _: graph_pb2.Argument(none=graph_pb2.NoneArgument()),
    bool: lambda value: graph_pb2.Argument(boolean=value),
    int: _integer,
    float: lambda value: graph_pb2.Argument(floating=value),
    complex: lambda value: graph_pb2.Argument(complex=graph_pb2.Complex(real=value.real, imaginary=value.imag)),
    str: lambda value: graph_pb2.Argument(text=value),
    ValueReference: lambda value: graph_pb2.Argument(value=value.value_id),
    SubgraphReference: lambda value: graph_pb2.Argument(subgraph=value.subgraph_index),
    Dtype: lambda value: graph_pb2.Argument(dtype=DTYPES.number[value]),
    DeviceClass: lambda value: graph_pb2.Argument(device_class=value.name),
    Layout: lambda value: graph_pb2.Argument(layout=LAYOUTS.number[value]),
    MemoryFormat: lambda value: graph_pb2.Argument(memory_format=MEMORY_FORMATS.number[value]),
}

_DECODE: Mapping[str, Callable[[Any], Argument]] = {
    "none": lambda _: None,
    "value": ValueReference,
    "integer": int,
    "floating": float,
    "boolean": bool,
    "text": str,
    "complex": lambda message: complex(message.real, message.imaginary),
    "dtype": DTYPES.member,
    "device_class": DeviceClass,
    "layout": LAYOUTS.member,
    "memory_format": MEMORY_FORMATS.member,
    "subgraph": SubgraphReference,
}
