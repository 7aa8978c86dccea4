"""Strides of states come back as declared, in no more memory than they need."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import pytest
import torch

from protos.v1 import stage_daemon_pb2 as daemon_pb
from stage_daemon.errors import InsufficientMemory, StateMismatch
from stage_daemon.loader.declared import Declared
from stage_daemon.loader.states import StateToLoad, find_states, load_states
from tests.builders.graph_messages import locations, small_message, tensor_bytes, weights


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


def _place(name: str, length_bytes: int, offset_bytes: int = 0) -> daemon_pb.StateLocation:
    return daemon_pb.StateLocation(
        name=name, file_sha256=bytes(32), offset_bytes=offset_bytes, length_bytes=length_bytes
    )


def test_tied_states_are_one_tensor_at_the_place_of_any_of_them() -> None:
    weight, bias = locations()
    weight.name = "tied.weight"
    tied, alone = find_states(small_message(), [bias, weight])
    assert (tied.names, alone.names) == (("linear.weight", "tied.weight"), ("linear.bias",))
    assert (tied.location, alone.location) == (weight, bias)
    assert (tied.declared.dims, alone.declared.dims) == ((4, 3), (4,))
    assert tied.sha256 == hashlib.sha256(tensor_bytes(weights()["linear.weight"])).digest()


def test_states_of_different_tie_groups_and_of_none_are_not_one() -> None:
    graph = small_message()
    graph.states[2].tie_group = 0
    places = [*locations(), _place("tied.weight", 48)]
    assert [state.names for state in find_states(graph, places)] == [
        ("linear.weight",),
        ("linear.bias",),
        ("tied.weight",),
    ]


@pytest.mark.parametrize("length_bytes", [44, 52])
def test_a_place_of_another_size_is_refused(length_bytes: int) -> None:
    weight, bias = locations()
    weight.length_bytes = length_bytes
    words = rf"'linear.weight': its place in the weights has {length_bytes} bytes, torch.float32 \[4, 3\] needs 48"
    with pytest.raises(StateMismatch, match=words) as raised:
        find_states(small_message(), [weight, bias])
    assert raised.value.metadata == {"state": "linear.weight"}


def test_each_state_is_read_from_its_place_and_an_empty_one_from_nowhere() -> None:
    reads: list[tuple[bytes, int, int]] = []
    progress: list[tuple[int, int]] = []

    def read(sha256: bytes, offset: int, length: int) -> Iterator[bytes]:
        reads.append((sha256, offset, length))
        yield bytes(length)

    states = [
        StateToLoad(("a",), Declared(torch.int32, (3,), ()), b"", _place("a", 12, offset_bytes=100)),
        StateToLoad(("none",), Declared(torch.int32, (0, 3), ()), b"", _place("none", 0, offset_bytes=50)),
        StateToLoad(("b", "c"), Declared(torch.int8, (5,), ()), b"", _place("b", 5, offset_bytes=7)),
    ]
    loaded_states = load_states(
        states, read, torch.device("cpu"), lambda loaded, total: progress.append((loaded, total))
    )
    assert reads == [(bytes(32), 100, 12), (bytes(32), 7, 5)]
    assert progress == [(12, 17), (17, 17)]
    assert {name: tuple(tensor.shape) for name, tensor in loaded_states.items()} == {
        "a": (3,),
        "none": (0, 3),
        "b": (5,),
        "c": (5,),
    }
    assert loaded_states["b"] is loaded_states["c"]


def test_bytes_may_come_in_any_chunks() -> None:
    tensor = torch.arange(100, dtype=torch.int16)
    data = tensor_bytes(tensor)

    def read(sha256: bytes, offset: int, length: int) -> Iterator[bytes]:
        for start, end in ((0, 1), (1, 1), (1, 150), (150, 200)):
            yield data[start:end]

    state = StateToLoad(
        ("x",), Declared(torch.int16, (100,), ()), hashlib.sha256(data).digest(), _place("x", len(data))
    )
    loaded = load_states([state], read, torch.device("cpu"), lambda loaded, total: None)["x"]
    assert torch.equal(loaded, tensor)


def test_one_byte_too_many_is_refused_whatever_came_before() -> None:
    def read(sha256: bytes, offset: int, length: int) -> Iterator[bytes]:
        yield bytes(length)
        yield b"x"

    state = StateToLoad(("x",), Declared(torch.int8, (9,), ()), b"", _place("x", 9))
    with pytest.raises(StateMismatch, match="'x': more than the 9 bytes that it has"):
        load_states([state], read, torch.device("cpu"), lambda loaded, total: None)
