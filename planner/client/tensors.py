"""Tensors as they travel, and as callers hold them: torch tensors, numpy arrays or raw bytes.

Torch is used where the caller has loaded it and never imported from here. numpy has neither bfloat16 nor float8: such
tensors come out as float32, which holds each of their values, and bfloat16 is rounded to nearest even on the way in.
"""

from __future__ import annotations

import ctypes
import math
import sys
from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from planner.errors import InvalidArgument
from planner.graph.ir import Dtype


class TensorKind(Enum):
    TORCH = "torch"
    NUMPY = "numpy"
    RAW = "raw"


@dataclass(frozen=True, slots=True, kw_only=True)
class RawTensor:
    """Contiguous, little-endian bytes: what a safetensors file holds, every dtype bit for bit."""

    dtype: Dtype
    dims: tuple[int, ...]
    data: bytes | memoryview

    def __post_init__(self) -> None:
        needed = math.prod(self.dims) * self.dtype.size_bytes
        if len(self.data) != needed:
            raise InvalidArgument(
                f"{self.dtype.value} tensor of dims {list(self.dims)}: {len(self.data)} bytes, needs {needed}"
            )


_NUMPY_DTYPES = {dtype: np.dtype(dtype.facts.numpy) for dtype in Dtype if dtype.facts.numpy}
# By torch's own, as they come.
_OF_TORCH: dict[Any, Dtype] = {}
_TO_TORCH: dict[Dtype, Any] = {}
_FROM_NUMPY = {numpy_dtype: dtype for dtype, numpy_dtype in _NUMPY_DTYPES.items()}


def loaded_torch() -> Any:
    """The torch module if the caller's process has imported it, else None."""
    return sys.modules.get("torch")


def kind_of(leaf: object) -> TensorKind | None:
    """None for what is no tensor."""
    if isinstance(leaf, RawTensor):
        return TensorKind.RAW
    if isinstance(leaf, (np.ndarray, np.generic)):
        return TensorKind.NUMPY
    torch = loaded_torch()
    if torch is not None and isinstance(leaf, torch.Tensor):
        return TensorKind.TORCH
    return None


Outline = tuple[Any, tuple[int, ...]]


def plain_outline(leaf: Any) -> Outline | None:
    """Torch's dtype and the dims of a tensor that is sent from its own memory, as it lies there; None for all else."""
    torch = sys.modules.get("torch")
    if (
        torch is not None
        and type(leaf) is torch.Tensor
        and leaf.layout is torch.strided
        and leaf.is_cpu
        and leaf.is_contiguous()
        and not leaf.is_neg()
        and not leaf.is_conj()
    ):
        return leaf.dtype, leaf.shape
    return None


def memory_of(tensor: Any) -> memoryview:
    """The bytes of a tensor that has a `plain_outline`; they keep it."""
    num_bytes = tensor.nbytes
    memory = (ctypes.c_ubyte * num_bytes).from_address(tensor.data_ptr() if num_bytes else 0)
    memory.tensor = tensor
    return memoryview(memory).cast("B")


def torch_in(memory: memoryview, begin: int, num_elements: int, dtype: Dtype, dims: tuple[int, ...]) -> Any:
    """A torch tensor that is not empty, in that memory."""
    flat = sys.modules["torch"].frombuffer(memory, dtype=_torch_dtype(dtype), count=num_elements, offset=begin)
    return flat.view(dims)


def to_raw(leaf: object, dtype: Dtype) -> RawTensor:
    """The leaf's bytes. Raises InvalidArgument if it has another dtype: nothing is converted silently."""
    if isinstance(leaf, RawTensor):
        return _checked(leaf, dtype)
    if isinstance(leaf, (np.ndarray, np.generic)):
        return _from_numpy(np.asarray(leaf), dtype)
    if kind_of(leaf) is TensorKind.TORCH:
        return _checked(_from_torch(leaf), dtype)
    raise InvalidArgument(f"{type(leaf).__name__} found, a {dtype.value} tensor or array needed")


def named_to_raw(name: str, leaf: object, dtype: Dtype, what: str = "input") -> RawTensor:
    """As to_raw, of the input of that name, or whatever it is, which an error names too."""
    try:
        return to_raw(leaf, dtype)
    except InvalidArgument as error:
        raise InvalidArgument(f"{what} {name!r}: {error.message}", **{what: name}) from None


def from_raw(raw: RawTensor, kind: TensorKind) -> Any:
    if kind is TensorKind.RAW:
        return raw
    return _to_numpy(raw) if kind is TensorKind.NUMPY else _to_torch(raw)


def _checked(raw: RawTensor, dtype: Dtype) -> RawTensor:
    if raw.dtype is not dtype:
        raise InvalidArgument(f"{raw.dtype.value} found, {dtype.value} needed; convert it first")
    return raw


def _from_numpy(array: NDArray[Any], needed: Dtype) -> RawTensor:
    if needed is Dtype.BFLOAT16 and array.dtype == np.float32:
        return RawTensor(dtype=needed, dims=array.shape, data=_round_to_bfloat16(array))
    little = array.dtype.newbyteorder("<")
    # ml_dtypes' types carry torch's names.
    dtype = _FROM_NUMPY.get(little) or next((d for d in Dtype if d.value == array.dtype.name), None)
    if dtype is None:
        raise InvalidArgument(f"numpy dtype {array.dtype} found, {needed.value} needed")
    data = np.ascontiguousarray(array, little).reshape(-1).view(np.uint8).data
    return _checked(RawTensor(dtype=dtype, dims=array.shape, data=data), needed)


def _round_to_bfloat16(array: NDArray[Any]) -> bytes:
    bits = np.ascontiguousarray(array, dtype="<f4").view("<u4")
    rounded = (bits + (0x7FFF + ((bits >> 16) & 1))) >> 16
    # Rounding could carry a NaN's payload into infinity.
    quiet = (bits >> 16) | 0x0040
    return np.where(np.isnan(array), quiet, rounded).astype("<u2").tobytes()


def _to_numpy(raw: RawTensor) -> NDArray[Any]:
    numpy_dtype = _NUMPY_DTYPES.get(raw.dtype)
    if numpy_dtype is not None:
        plain: NDArray[Any] = np.frombuffer(_writable(raw.data), dtype=numpy_dtype)
        return plain.reshape(raw.dims)
    if raw.dtype is Dtype.BFLOAT16:
        widened: NDArray[Any] = (np.frombuffer(raw.data, dtype="<u2").astype("<u4") << 16).view("<f4")
        return widened.reshape(raw.dims)
    decoded: NDArray[Any] = _FLOAT8_VALUES[raw.dtype][np.frombuffer(raw.data, dtype="u1")]
    return decoded.reshape(raw.dims)


def _from_torch(tensor: Any) -> RawTensor:
    torch = loaded_torch()
    dtype = _OF_TORCH.get(tensor.dtype)
    if dtype is None:
        try:
            dtype = _OF_TORCH[tensor.dtype] = Dtype(str(tensor.dtype).removeprefix("torch."))
        except ValueError:
            raise InvalidArgument(f"{tensor.dtype} found: no such dtype can be sent") from None
    if plain_outline(tensor) is not None:
        return RawTensor(dtype=dtype, dims=tuple(tensor.shape), data=memory_of(tensor))
    if tensor.layout is not torch.strided or tensor.is_meta:
        kind = "a tensor without data (device meta)" if tensor.is_meta else f"a tensor of layout {tensor.layout}"
        raise InvalidArgument(f"{kind} found, a dense one with its data needed")
    flat = tensor.detach().resolve_conj().resolve_neg().cpu().contiguous().reshape(-1)
    return RawTensor(dtype=dtype, dims=tuple(tensor.shape), data=flat.view(torch.uint8).numpy().data)


def _to_torch(raw: RawTensor) -> Any:
    torch = loaded_torch()
    dtype = _torch_dtype(raw.dtype)
    if not len(raw.data):
        return torch.empty(raw.dims, dtype=dtype)
    return torch.frombuffer(_writable(raw.data), dtype=dtype).view(raw.dims)


def _torch_dtype(dtype: Dtype) -> Any:
    known = _TO_TORCH.get(dtype)
    if known is None:
        known = _TO_TORCH[dtype] = getattr(loaded_torch(), dtype.value)
    return known


def _writable(data: bytes | memoryview) -> bytearray | memoryview:
    """A memoryview is of memory that was made for this tensor."""
    return data if isinstance(data, memoryview) else bytearray(data)


def _float8_values(*, exponent_bits: int, mantissa_bits: int, has_infinity: bool) -> NDArray[np.float32]:
    """The value of each of the 256 codes (OCP 8-bit floating point specification, revision 1.0)."""
    codes = np.arange(256)
    sign = np.where(codes >> 7, -1.0, 1.0)
    exponent = (codes >> mantissa_bits) & ((1 << exponent_bits) - 1)
    fraction = (codes & ((1 << mantissa_bits) - 1)) / (1 << mantissa_bits)
    bias, top = (1 << (exponent_bits - 1)) - 1, (1 << exponent_bits) - 1
    subnormal = sign * fraction * 2.0 ** (1 - bias)
    values = np.where(exponent == 0, subnormal, sign * (1 + fraction) * 2.0 ** (exponent - bias))
    if has_infinity:
        values = np.where(exponent == top, np.where(fraction == 0, sign * np.inf, np.nan), values)
    else:
        values = np.where((codes & 0x7F) == 0x7F, np.nan, values)
    return values.astype(np.float32)


_FLOAT8_VALUES = {
    Dtype.FLOAT8_E4M3FN: _float8_values(exponent_bits=4, mantissa_bits=3, has_infinity=False),
    Dtype.FLOAT8_E5M2: _float8_values(exponent_bits=5, mantissa_bits=2, has_infinity=True),
}
