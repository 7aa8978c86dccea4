"""Every dtype goes to bytes and back without a bit changed, from torch, numpy and raw bytes."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from planner.client.tensors import RawTensor, TensorKind, from_raw, to_raw
from planner.errors import InvalidArgument
from planner.graph.ir import Dtype
from tests.random_examples import random_examples

NUMPY_HAS = [dtype for dtype in Dtype if dtype.value not in ("bfloat16", "float8_e4m3fn", "float8_e5m2")]


def codes(dtype: Dtype, count: int = 64) -> RawTensor:
    """Arbitrary bits; for bool, bits that are booleans."""
    rng = np.random.default_rng(0)
    data = rng.integers(0, 2 if dtype is Dtype.BOOL else 256, count * dtype.size_bytes, dtype=np.uint8).tobytes()
    return RawTensor(dtype=dtype, dims=(4, count // 4), data=data)


@pytest.mark.parametrize("dtype", list(Dtype))
def test_torch_keeps_every_bit(dtype: Dtype) -> None:
    raw = codes(dtype)
    tensor = from_raw(raw, TensorKind.TORCH)
    assert tensor.dtype is getattr(torch, dtype.value)
    assert to_raw(tensor, dtype) == raw


@pytest.mark.parametrize("dtype", NUMPY_HAS)
def test_numpy_keeps_every_bit(dtype: Dtype) -> None:
    raw = codes(dtype)
    assert to_raw(from_raw(raw, TensorKind.NUMPY), dtype) == raw


@pytest.mark.parametrize("dtype", [Dtype.BFLOAT16, Dtype.FLOAT8_E4M3FN, Dtype.FLOAT8_E5M2])
def test_dtypes_that_numpy_lacks_come_out_as_float32(dtype: Dtype) -> None:
    every = np.arange(256**dtype.size_bytes, dtype=f"<u{dtype.size_bytes}")
    raw = RawTensor(dtype=dtype, dims=every.shape, data=every.tobytes())
    expected = from_raw(raw, TensorKind.TORCH).float().numpy()
    np.testing.assert_array_equal(from_raw(raw, TensorKind.NUMPY), expected)


@random_examples(100)
@given(st.lists(st.floats(width=32), min_size=1, max_size=20))
def test_float32_rounds_to_bfloat16_as_torch_does(numbers: list[float]) -> None:
    array = np.array(numbers, dtype=np.float32)
    rounded = from_raw(to_raw(array, Dtype.BFLOAT16), TensorKind.TORCH)
    torch.testing.assert_close(rounded, torch.from_numpy(array).bfloat16(), rtol=0, atol=0, equal_nan=True)


def test_strides_conjugates_and_shapes_do_not_matter() -> None:
    transposed = torch.arange(6, dtype=torch.float32).reshape(2, 3).T
    assert torch.equal(from_raw(to_raw(transposed, Dtype.FLOAT32), TensorKind.TORCH), transposed)
    conjugate = torch.randn(3, dtype=torch.complex64).conj()
    assert torch.equal(from_raw(to_raw(conjugate, Dtype.COMPLEX64), TensorKind.TORCH), conjugate)
    for shape in ((), (0,), (2, 0, 3)):
        empty = torch.zeros(shape)
        assert from_raw(to_raw(empty, Dtype.FLOAT32), TensorKind.TORCH).shape == shape
        assert from_raw(to_raw(empty.numpy(), Dtype.FLOAT32), TensorKind.NUMPY).shape == shape
    big_endian = np.array([1, 2], dtype=">i4")
    np.testing.assert_array_equal(from_raw(to_raw(big_endian, Dtype.INT32), TensorKind.NUMPY), [1, 2])


def test_another_dtype_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="float64 found, float32 needed"):
        to_raw(np.zeros(2), Dtype.FLOAT32)
    with pytest.raises(InvalidArgument, match="int64 found, int32 needed"):
        to_raw(torch.zeros(2, dtype=torch.int64), Dtype.INT32)
    with pytest.raises(InvalidArgument, match="list found"):
        to_raw([1.0], Dtype.FLOAT32)
    with pytest.raises(InvalidArgument, match="3 bytes, needs 8"):
        RawTensor(dtype=Dtype.FLOAT32, dims=(2,), data=b"abc")


def test_what_has_no_dense_data_is_refused() -> None:
    dense = torch.eye(3)
    for tensor, kind in (
        (dense.to("meta"), r"without data \(device meta\)"),
        (dense.to_sparse(), "layout torch.sparse_coo"),
    ):
        with pytest.raises(InvalidArgument, match=f"a tensor .*{kind} found, a dense one with its data needed"):
            to_raw(tensor, Dtype.FLOAT32)


def test_results_can_be_written_to() -> None:
    raw = RawTensor(dtype=Dtype.FLOAT32, dims=(1,), data=bytes(4))
    for kind in (TensorKind.TORCH, TensorKind.NUMPY):
        result = from_raw(raw, kind)
        result += 1
        assert raw.data == bytes(4)
