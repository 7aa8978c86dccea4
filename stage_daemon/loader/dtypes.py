"""What the wire's enumerations mean in torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

import torch

from protos.v1 import graph_pb2 as pb
from stage_daemon.errors import InvalidGraph

Meaning = TypeVar("Meaning")

_DTYPES: Mapping[int, torch.dtype] = {
    pb.DTYPE_FLOAT64: torch.float64,
    pb.DTYPE_FLOAT32: torch.float32,
    pb.DTYPE_FLOAT16: torch.float16,
    pb.DTYPE_BFLOAT16: torch.bfloat16,
    pb.DTYPE_FLOAT8_E4M3FN: torch.float8_e4m3fn,
    pb.DTYPE_FLOAT8_E5M2: torch.float8_e5m2,
    pb.DTYPE_INT64: torch.int64,
    pb.DTYPE_INT32: torch.int32,
    pb.DTYPE_INT16: torch.int16,
    pb.DTYPE_INT8: torch.int8,
    pb.DTYPE_UINT8: torch.uint8,
    pb.DTYPE_BOOL: torch.bool,
    pb.DTYPE_COMPLEX64: torch.complex64,
    pb.DTYPE_COMPLEX128: torch.complex128,
}
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
