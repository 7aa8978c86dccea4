"""Tensors as dense bytes, and back with the strides that they had.

Kernels choose their path, and so their last bit, by strides: a stage must see the very layout that the whole module
would have seen. Stride-0 dimensions travel as one element; gaps between elements do not travel at all.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch

# A slice of a larger tensor is rebuilt with its gaps up to this many times its own size; beyond, it is made dense.
MAX_EXTENT_FACTOR = 8
MAX_ELEMENTS = (1 << 63) - 1


def can_be_counted(dims: Sequence[int]) -> bool:
    """Whether torch can count the elements: it multiplies sizes also where another one is 0 or has stride 0."""
    return math.prod(size for size in dims if size) <= MAX_ELEMENTS


@dataclass(frozen=True, kw_only=True)
class TensorLayout:
    """Both ends of an edge keep one for each shape, so what follows from it is worked out once."""

    dtype: torch.dtype
    dims: tuple[int, ...]
    # In elements.
    strides: tuple[int, ...]

    def __post_init__(self) -> None:
        if len(self.dims) != len(self.strides) or min((0, *self.dims, *self.strides)) < 0:
            raise ValueError(f"dims {self.dims} with strides {self.strides}, needs none below 0")
        if not can_be_counted(self.dims):
            raise ValueError(f"dims {self.dims}, needs at most {MAX_ELEMENTS} elements")

    @cached_property
    def core_dims(self) -> tuple[int, ...]:
        """Dims with the stride-0 ones as 1."""
        return tuple(
            min(size, 1) if stride == 0 else size for size, stride in zip(self.dims, self.strides, strict=True)
        )

    @cached_property
    def num_core_elements(self) -> int:
        return math.prod(self.core_dims)

    @cached_property
    def size_bytes(self) -> int:
        """Bytes that travel."""
        return self.num_core_elements * self.dtype.itemsize

    @cached_property
    def extent(self) -> int:
        """Elements from the first to the last, gaps included."""
        if self.num_core_elements == 0:
            return 0
        return 1 + sum((size - 1) * stride for size, stride in zip(self.core_dims, self.strides, strict=True))

    @cached_property
    def order(self) -> tuple[int, ...]:
        """Dimensions of the core with more than one element, outermost first: the order of the bytes."""
        core = self.core_dims
        wide = (position for position, size in enumerate(core) if size > 1)
        return tuple(sorted(wide, key=lambda position: (-self.strides[position], position)))

    @cached_property
    def is_dense(self) -> bool:
        return self.dense_strides() == self.strides

    def dense_strides(self) -> tuple[int, ...]:
        """The strides without gaps or overlaps, in the same order; those of size-1 and stride-0 dimensions stay."""
        strides = list(self.strides)
        step = 1
        for position in reversed(self.order):
            strides[position] = step
            step *= self.dims[position]
        return tuple(strides)

    def has_overlap(self) -> bool:
        """Whether two places may share an element; true for every layout that is not a nesting of its dimensions."""
        reach = 1
        for position in reversed(self.order):
            if self.strides[position] < reach:
                return True
            reach = self.strides[position] * (self.dims[position] - 1) + reach
        return False


def pack(tensor: torch.Tensor) -> tuple[TensorLayout, torch.Tensor]:
    """The layout to rebuild, and the bytes (flat uint8): the tensor's own memory where it is dense, else a copy."""
    tensor = tensor.detach().resolve_conj().resolve_neg()
    layout = TensorLayout(dtype=tensor.dtype, dims=tuple(tensor.shape), strides=tensor.stride())
    if layout.num_core_elements == 0:
        return layout, torch.empty(0, dtype=torch.uint8)
    core = tensor.as_strided(layout.core_dims, layout.strides, tensor.storage_offset())
    if layout.is_dense:
        flat = core.as_strided((layout.num_core_elements,), (1,), core.storage_offset())
        return layout, flat.view(torch.uint8)
    flat = _in_order(core, layout.order).contiguous().view(-1)
    if layout.has_overlap() or layout.extent > MAX_EXTENT_FACTOR * layout.num_core_elements:
        layout = TensorLayout(dtype=layout.dtype, dims=layout.dims, strides=layout.dense_strides())
    return layout, flat.view(torch.uint8)


def unpack(layout: TensorLayout, buffer: torch.Tensor) -> torch.Tensor:
    """The tensor whose bytes `buffer` holds, flat; it shares the buffer's memory where the layout is dense."""
    if layout.num_core_elements == 0:
        return torch.empty_strided(layout.dims, layout.strides, dtype=layout.dtype, device=buffer.device)
    flat = buffer if buffer.dtype is layout.dtype else buffer.view(layout.dtype)
    if layout.is_dense:
        return flat.as_strided(layout.dims, layout.strides)
    memory = torch.empty(layout.extent, dtype=layout.dtype, device=buffer.device)
    core = _in_order(memory.as_strided(layout.core_dims, layout.strides), layout.order)
    core.copy_(flat.view(core.shape))
    return memory.as_strided(layout.dims, layout.strides)


def memory_of(tensor: torch.Tensor, num_bytes: int) -> memoryview:
    """The bytes that the tensor's memory begins with; they keep the tensor."""
    memory = (ctypes.c_ubyte * num_bytes).from_address(tensor.data_ptr() if num_bytes else 0)
    memory.tensor = tensor  # type: ignore[attr-defined]
    return memoryview(memory).cast("B")


def _in_order(core: torch.Tensor, order: tuple[int, ...]) -> torch.Tensor:
    others = tuple(position for position in range(core.dim()) if position not in order)
    return core.permute(*others, *order)
