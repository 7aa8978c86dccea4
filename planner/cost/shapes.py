"""Every value's dims and bytes at one setting of the dynamic dimensions, evaluated once."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from planner.graph.expression import evaluate
from planner.graph.ir import Dtype, Graph, Value, ValueKind


@dataclass(frozen=True, slots=True)
class Shape:
    """Dims in elements; bytes of the whole tensor, stride-0 dimensions expanded."""

    dims: tuple[int, ...]
    dtype: Dtype | None
    size_bytes: int

    @property
    def num_elements(self) -> int:
        return math.prod(self.dims)


def shapes_of(graph: Graph, symbol_values: Mapping[int, int]) -> dict[int, Shape]:
    """Value id to shape. Raises GraphError where a dimension cannot be evaluated."""
    return {value.id: _shape(value, symbol_values) for value in graph.values}


def _shape(value: Value, symbol_values: Mapping[int, int]) -> Shape:
    if value.kind is ValueKind.OPAQUE:
        return Shape((), None, value.opaque_bytes)
    dims = tuple(dim if isinstance(dim, int) else evaluate(dim, symbol_values) for dim in value.dims)
    if value.dtype is None:
        return Shape(dims, None, 8)
    return Shape(dims, value.dtype, math.prod(dims) * value.dtype.size_bytes)
