"""What the wire's enumerations mean in torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

import torch

from protos.v1 import graph_pb2 as pb
from stage_daemon.errors import InvalidGraph
from stage_daemon.transport.dtypes import DTYPES

Meaning = TypeVar("Meaning")

_DTYPES: Mapping[int, torch.dtype] = {pb.Dtype.Value(f"DTYPE_{name.upper()}"): getattr(torch, name) for name in DTYPES}
_LAYOUTS: Mapping[int, torch.layout] = {pb.LAYOUT_STRIDED: torch.strided}
_MEMORY_FORMATS: Mapping[int, torch.memory_format] = {
    pb.MEMORY_FORMAT_CONTIGUOUS: torch.contiguous_format,
    pb.MEMORY_FORMAT_PRESERVE: torch.preserve_format,
    pb.MEMORY_FORMAT_CHANNELS_LAST: torch.channels_last,
    pb.MEMORY_FORMAT_CHANNELS_LAST_3D: torch.channels_last_3d,
}


def torch_dtype(where: str, number: int) -> torch.dtype:
    return _look_up(_DTYPES, where, "dtype", number)


def torch_layout(where: str, number: int) -> torch.layout:
    return _look_up(_LAYOUTS, where, "layout", number)


def torch_memory_format(where: str, number: int) -> torch.memory_format:
    return _look_up(_MEMORY_FORMATS, where, "memory format", number)


def _look_up(table: Mapping[int, Meaning], where: str, what: str, number: int) -> Meaning:
    try:
        return table[number]
    except KeyError:
        raise InvalidGraph(f"{where}: {what} {number} is not one that this daemon knows") from None
