"""What the graph declares of its tensors: dtype, dims and strides as numbers, within bounds."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from protos.v1 import graph_pb2 as pb
from stage_daemon.errors import InvalidGraph
from stage_daemon.loader.bounds import MAX_DIM, MAX_RANK, MAX_TENSOR_BYTES, shown
from stage_daemon.loader.dtypes import torch_dtype
from stage_daemon.loader.expressions import evaluate


@dataclass(frozen=True, slots=True)
class Declared:
    """Empty strides mean contiguous; strides are in elements."""

    dtype: torch.dtype
    dims: tuple[int, ...]
    strides: tuple[int, ...]

    @property
    def size_bytes(self) -> int:
        return math.prod(self.dims) * self.dtype.itemsize

    @property
    def is_contiguous(self) -> bool:
        return not self.strides or self.size_bytes == 0 or self.strides == contiguous_strides(self.dims)

    @property
    def storage_elements(self) -> int:
        """Elements from the first to the last that a tensor of these strides spans."""
        if not self.size_bytes:
            return 0
        return 1 + sum((dim - 1) * stride for dim, stride in zip(self.dims, self.strides, strict=True))


def symbol_hints(where: str, symbols: pb.Graph) -> dict[int, int]:
    hints: dict[int, int] = {}
    for symbol in symbols.symbols:
        if symbol.id < 1 or symbol.id in hints:
            raise InvalidGraph(f"{where}symbol {symbol.id} ({shown(symbol.name)}): an id must be at least 1 and unique")
        hints[symbol.id] = symbol.hint
    return hints


def declared_tensor(where: str, value: pb.Value, hints: Mapping[int, int]) -> Declared:
    """Raises InvalidGraph for a dimension outside 0 to 2^40 or a tensor over 2^50 bytes."""
    at = f"{where}value {value.id} ({shown(value.name)})"
    if len(value.dims) > MAX_RANK:
        raise InvalidGraph(f"{at}: {len(value.dims)} dimensions, at most {MAX_RANK} are allowed")
    if value.strides and len(value.strides) != len(value.dims):
        raise InvalidGraph(f"{at}: {len(value.strides)} strides for {len(value.dims)} dimensions")
    dims = tuple(_bounded(f"{at}: dimension {index}", dim, hints) for index, dim in enumerate(value.dims))
    strides = tuple(_bounded(f"{at}: stride {index}", stride, hints) for index, stride in enumerate(value.strides))
    declared = Declared(torch_dtype(at, value.dtype), dims, strides)
    if declared.size_bytes > MAX_TENSOR_BYTES:
        raise InvalidGraph(f"{at}: {declared.size_bytes} bytes, at most 2^50 are allowed")
    return declared


def contiguous_strides(dims: tuple[int, ...]) -> tuple[int, ...]:
    strides: list[int] = []
    step = 1
    for dim in reversed(dims):
        strides.append(step)
        step *= max(dim, 1)
    return tuple(reversed(strides))


def _bounded(at: str, expression: pb.Expression, hints: Mapping[int, int]) -> int:
    size = evaluate(at, expression, hints)
    if not 0 <= size <= MAX_DIM:
        raise InvalidGraph(f"{at} is {size}, needs 0 to 2^40", found=size)
    return size
