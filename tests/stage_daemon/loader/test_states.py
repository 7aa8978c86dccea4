"""Strides of states come back as declared, in no more memory than they need."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import pytest
import torch

from protos.v1 import stage_daemon_pb2 as daemon_pb
from stage_daemon.errors import InsufficientMemory, StateMismatch
from stage_daemon.loader.declared import Declared
from stage_daemon.loader.states import StateToLoad, load_states
from tests.builders.graph_messages import tensor_bytes


def _load(tensor: torch.Tensor, strides: tuple[int, ...] = (), data: bytes | None = None) -> torch.Tensor:
    stored = tensor_bytes(tensor) if data is None else data

    def read(sha256: bytes, offset: int, length: int) -> Iterator[bytes]:
        yield stored[offset : offset + length]

    state = StateToLoad(
        names=("state",),
        declared=Declared(tensor.dtype, tuple(tensor.shape), strides or tensor.stride()),
        sha256=hashlib.sha256(stored).digest(),
        location=daemon_pb.StateLocation(name="state", length_bytes=len(stored)),
    )
    return load_states([state], read, torch.device("cpu"), lambda loaded, total: None)["state"]


DTYPES = [
    torch.float64,
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
    torch.int64,
    torch.int32,
    torch.int16,
    torch.int8,
    torch.uint8,
    torch.bool,
    torch.complex64,
    torch.complex128,
]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("dims", [(), (0,), (3,), (2, 0, 4), (2, 3, 4)], ids=str)
def test_every_dtype_and_rank_comes_back(dtype: torch.dtype, dims: tuple[int, ...]) -> None:
    tensor = (torch.rand(dims) * 4 - 1).to(dtype)
    loaded = _load(tensor)
    assert (loaded.dtype, loaded.shape, loaded.stride()) == (tensor.dtype, tensor.shape, tensor.stride())
    assert tensor_bytes(loaded) == tensor_bytes(tensor)


def test_not_a_number_keeps_its_bits() -> None:
    tensor = torch.tensor([float("nan"), -float("nan"), float("inf"), -0.0])
    assert tensor_bytes(_load(tensor)) == tensor_bytes(tensor)


def test_permuted_strides_come_back() -> None:
    tensor = torch.randn(2, 3, 4).permute(2, 0, 1)
    loaded = _load(tensor)
    assert torch.equal(loaded, tensor)
    assert loaded.stride() == tensor.stride()


def test_channels_last_comes_back() -> None:
    tensor = torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)
    loaded = _load(tensor)
    assert torch.equal(loaded, tensor)
    assert loaded.is_contiguous(memory_format=torch.channels_last)


def test_a_dimension_of_stride_zero_is_stored_once() -> None:
    tensor = torch.randn(1, 8).expand(1000, 8)
    loaded = _load(tensor)
    assert torch.equal(loaded, tensor)
    assert loaded.stride() == (0, 1)
    assert loaded.untyped_storage().nbytes() == 8 * 4


def test_strides_with_gaps_take_no_more_than_the_elements() -> None:
    tensor = torch.randn(4, 2)
    loaded = _load(tensor, strides=(2**39, 1))
    assert torch.equal(loaded, tensor)
    assert loaded.untyped_storage().nbytes() == 4 * 2 * 4


def test_a_bool_that_is_neither_is_refused() -> None:
    with pytest.raises(StateMismatch, match="neither 0 nor 1"):
        _load(torch.zeros(4, dtype=torch.bool), data=b"\x00\x01\x02\x00")


def test_what_fits_no_memory_is_refused() -> None:
    state = StateToLoad(
        names=("huge",),
        declared=Declared(torch.float64, (2**40, 2**6), ()),
        sha256=b"",
        location=daemon_pb.StateLocation(name="huge", length_bytes=2**49),
    )

    def read(sha256: bytes, offset: int, length: int) -> Iterator[bytes]:
        raise AssertionError("read before the memory was there")

    with pytest.raises(InsufficientMemory, match="'huge'"):
        load_states([state], read, torch.device("cpu"), lambda loaded, total: None)
