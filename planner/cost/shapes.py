"""Every value's dims and bytes at one setting of the dynamic dimensions, evaluated once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from planner.graph.expression import evaluate
from planner.graph.ir import Dtype, Graph, Value


@dataclass(frozen=True, slots=True)
class Shape:
    """Dims in elements; bytes of the whole tensor, stride-0 dimensions expanded."""

    dims: tuple[int, ...]
    dtype: Dtype | None
    size_bytes: int

    @property
    def num_elements(self) -> int:
        product = 1
        for dim in self.dims:
            product *= dim
        return product


def shapes_of(graph: Graph, symbol_values: Mapping[int, int]) -> dict[int, Shape]:
    """Value id to shape. Raises GraphError where a dimension cannot be evaluated."""
    return {value.id: _shape(value, symbol_values) for value in graph.values}


def _shape(value: Value, symbol_values: Mapping[int, int]) -> Shape:
    dims = tuple(dim if isinstance(dim, int) else max(0, evaluate(dim, symbol_values)) for dim in value.dims)
    shape = Shape(dims, value.dtype, value.opaque_bytes)
    if value.opaque_bytes:
        return shape
    return Shape(dims, value.dtype, shape.num_elements * value.dtype.size_bytes if value.dtype else 8)
