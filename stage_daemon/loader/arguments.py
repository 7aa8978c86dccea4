"""From an Argument on the wire to what a call takes."""

from __future__ import annotations

import cmath
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from protos.v1 import graph_pb2 as pb
from stage_daemon.errors import InvalidGraph
from stage_daemon.loader.bounds import MAX_ARGUMENT_DEPTH, MAX_ARGUMENT_ITEMS, shown
from stage_daemon.loader.dtypes import torch_dtype, torch_layout, torch_memory_format

_DEVICE_CLASSES = frozenset({"cpu", "cuda", "meta"})


@dataclass(frozen=True, slots=True)
class ArgumentReader:
    """Reads arguments of one program: `values` grows as nodes are rebuilt; every device becomes `device`.

    `values` stand for themselves: a program's nodes where it is rebuilt, tensors and numbers where a call is made.
    """

    values: Mapping[int, Any]
    subgraphs: Sequence[fx.Node]
    device: torch.device

    def read(self, where: str, argument: pb.Argument, depth_left: int = MAX_ARGUMENT_DEPTH) -> Any:
        kind = argument.WhichOneof("kind")
        if kind is None:
            raise InvalidGraph(f"{where}: an argument is empty")
        if kind in ("list", "tuple"):
            return self._read_items(where, argument, kind, depth_left)
        return _READ[kind](self, where, argument)

    def _read_items(self, where: str, argument: pb.Argument, kind: str, depth_left: int) -> Any:
        if depth_left <= 0:
            raise InvalidGraph(f"{where}: an argument is nested more than {MAX_ARGUMENT_DEPTH} deep")
        items = argument.list.items if kind == "list" else argument.tuple.items
        if len(items) > MAX_ARGUMENT_ITEMS:
            raise InvalidGraph(f"{where}: an argument of {len(items)} items, at most {MAX_ARGUMENT_ITEMS} are allowed")
        read = [self.read(where, item, depth_left - 1) for item in items]
        return read if kind == "list" else tuple(read)

    def _value(self, where: str, argument: pb.Argument) -> Any:
        if argument.value not in self.values:
            raise InvalidGraph(f"{where}: reads value {argument.value}, which nothing before it gives")
        return self.values[argument.value]

    def _subgraph(self, where: str, argument: pb.Argument) -> fx.Node:
        if argument.subgraph >= len(self.subgraphs):
            count = len(self.subgraphs)
            raise InvalidGraph(f"{where}: speaks of subgraph {argument.subgraph}; the graph has {count}")
        return self.subgraphs[argument.subgraph]

    def _complex(self, where: str, argument: pb.Argument) -> complex:
        number = complex(argument.complex.real, argument.complex.imaginary)
        if not cmath.isfinite(number):
            raise InvalidGraph(f"{where}: a complex argument is not finite")
        return number

    def _device(self, where: str, argument: pb.Argument) -> torch.device:
        if argument.device_class not in _DEVICE_CLASSES:
            raise InvalidGraph(
                f"{where}: device class {shown(argument.device_class)}, needs one of {sorted(_DEVICE_CLASSES)}"
            )
        return self.device


_READ: Mapping[str, Callable[[ArgumentReader, str, pb.Argument], Any]] = {
    "none": lambda reader, where, argument: None,
    "value": ArgumentReader._value,
    "integer": lambda reader, where, argument: argument.integer,
    "floating": lambda reader, where, argument: argument.floating,
    "boolean": lambda reader, where, argument: argument.boolean,
    "text": lambda reader, where, argument: argument.text,
    "complex": ArgumentReader._complex,
    "dtype": lambda reader, where, argument: torch_dtype(where, argument.dtype),
    "device_class": ArgumentReader._device,
    "layout": lambda reader, where, argument: torch_layout(where, argument.layout),
    "memory_format": lambda reader, where, argument: torch_memory_format(where, argument.memory_format),
    "subgraph": ArgumentReader._subgraph,
}
