"""Safetensors headers: what the format's own library writes is read right, anything else is refused."""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import save

from planner.errors import InvalidArgument, NotFound
from planner.graph.ir import Dtype, WeightFile
from planner.store.weights import TensorLocation, index_safetensors, locate_states
from tests.contract.graphs import chain_weights, linear_chain
from tests.random_examples import random_examples


class Files:
    """Contents by digest."""

    def __init__(self) -> None:
        self._contents: dict[bytes, bytes] = {}

    def add(self, content: bytes) -> WeightFile:
        digest = hashlib.sha256(content).digest()
        self._contents[digest] = content
        return WeightFile(sha256=digest, size_bytes=len(content))

    def read_range(self, sha256: bytes, offset: int, length: int) -> Iterator[bytes]:
        assert length > 0
        assert offset + length <= len(self._contents[sha256])
        yield self._contents[sha256][offset : offset + length]


def index(content: bytes) -> dict[str, TensorLocation]:
    files = Files()
    return index_safetensors(files.read_range, files.add(content))


def encode(header: object, data: bytes = b"") -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def test_what_the_library_writes() -> None:
    tensors = {
        "a": np.arange(12, dtype=np.float32).reshape(3, 4),
        "b.c": np.array(7, dtype=np.int64),
        "empty": np.zeros((0, 5), dtype=np.float16),
        "flags": np.array([True, False]),
    }
    content = save(tensors, metadata={"format": "pt"})
    locations = index(content)
    assert locations.keys() == tensors.keys()
    for name, location in locations.items():
        end = location.offset_bytes + location.length_bytes
        assert content[location.offset_bytes : end] == tensors[name].tobytes()
        assert location.dims == tensors[name].shape
        assert location.dtype.value == str(tensors[name].dtype)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"1234567",
        struct.pack("<Q", 2**63),
        struct.pack("<Q", 10) + b"{}",
        encode(b"\xff\xfe"),
        encode([]),
        encode(b"[" * 10_000),
        encode(b'{"a": {}, "a": {}}'),
        encode({"a": []}),
        encode({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}),
        encode({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}, bytes(3)),
        encode({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 4]}}, bytes(4)),
        encode({"a": {"dtype": "F99", "shape": [1], "data_offsets": [0, 4]}}, bytes(4)),
        encode({"a": {"dtype": "F32", "shape": [-1], "data_offsets": [0, 4]}}, bytes(4)),
        encode({"a": {"dtype": "F32", "shape": [1.0], "data_offsets": [0, 4]}}, bytes(4)),
        encode({"a": {"dtype": "F32", "shape": [True], "data_offsets": [0, 4]}}, bytes(4)),
        encode({"a": {"dtype": "F32", "shape": [2**50, 0], "data_offsets": [0, 0]}}, bytes(4)),
        encode({"a": {"dtype": "F32", "shape": [1], "data_offsets": [4, 0]}}, bytes(4)),
        encode({"a": {"dtype": "U8", "shape": [], "data_offsets": [0]}}, bytes(4)),
        encode(
            {
                "a": {"dtype": "U8", "shape": [3], "data_offsets": [0, 3]},
                "b": {"dtype": "U8", "shape": [3], "data_offsets": [2, 5]},
            },
            bytes(5),
        ),
    ],
)
def test_unsound_file(content: bytes) -> None:
    with pytest.raises(InvalidArgument, match="weight file"):
        index(content)


@random_examples(100)
@given(st.binary(max_size=200), st.binary(max_size=20))
def test_any_bytes_end_in_an_error_or_in_tensors(header: bytes, data: bytes) -> None:
    for content in (header + data, encode(header, data)):
        try:
            index(content)
        except InvalidArgument:
            continue


def test_states_across_files() -> None:
    files = Files()
    graph = linear_chain(num_layers=2, width=4)
    names = ("layers.0.weight", "layers.1.weight")
    weights = [files.add(save({name: np.full((4, 4), 1, np.float32)})) for name in names]
    locations = locate_states(graph, weights, files.read_range)
    assert {name: location.file_sha256 for name, location in locations.items()} == {
        name: file.sha256 for name, file in zip(names, weights, strict=True)
    }
    with pytest.raises(NotFound, match=r"layers\.1\.weight"):
        locate_states(graph, weights[:1], files.read_range)


def test_wrong_dtype_and_shape_name_the_tensor() -> None:
    files = Files()
    graph = linear_chain(num_layers=1, width=4)
    for tensor in (np.zeros((4, 4), np.float64), np.zeros((4, 5), np.float32), np.zeros((16,), np.float32)):
        file = files.add(save({"layers.0.weight": tensor}))
        with pytest.raises(InvalidArgument, match=r"layers\.0\.weight"):
            locate_states(graph, [file], files.read_range)


def test_first_tensor_of_the_handmade_file() -> None:
    location = index(chain_weights(num_layers=2, width=4))["layers.1.weight"]
    assert (location.length_bytes, location.dims, location.dtype) == (64, (4, 4), Dtype.FLOAT32)


def entry(dims: list[int], start: int, end: int, dtype: str = "U8") -> dict[str, object]:
    return {"dtype": dtype, "shape": dims, "data_offsets": [start, end]}


def test_tensors_may_touch_leave_gaps_stand_in_any_order_and_be_empty() -> None:
    header = {"c": entry([3], 5, 8), "a": entry([2], 0, 2), "b": entry([1], 2, 3), "d": entry([0, 7], 3, 3)}
    locations = index(encode(header, bytes(8)))
    start = len(encode(header))
    assert {name: (one.offset_bytes - start, one.length_bytes) for name, one in locations.items()} == {
        "c": (5, 3),
        "a": (0, 2),
        "b": (2, 1),
        "d": (3, 0),
    }


def test_the_largest_header_entries_that_are_taken() -> None:
    assert index(encode({"a": entry([1] * 64, 0, 1)}, b"x"))["a"].dims == (1,) * 64
    assert index(encode({"a": entry([1 << 40, 0], 0, 0)}))["a"].length_bytes == 0
    for unsound in (entry([1] * 65, 0, 1), entry([(1 << 40) + 1, 0], 0, 0), entry([2], 0, 2)):
        with pytest.raises(InvalidArgument, match="tensor 'a'"):
            index(encode({"a": unsound}, b"x"))


def test_metadata_are_no_tensor() -> None:
    assert index(encode({"__metadata__": {"format": "pt"}})) == {}


def test_a_header_as_long_as_the_file_and_one_byte_longer() -> None:
    assert index(struct.pack("<Q", 2) + b"{}") == {}
    with pytest.raises(InvalidArgument, match="its header would have 3 bytes, the file has 10"):
        index(struct.pack("<Q", 3) + b"{}")


def test_tied_states_are_found_under_the_first_name_of_their_group_or_their_own() -> None:
    files = Files()
    graph = linear_chain(num_layers=3, width=2)
    states = tuple(replace(state, tie_group=group) for state, group in zip(graph.states, (7, 0, 7), strict=True))
    tied = replace(graph, states=states)
    shared = files.add(save({f"layers.{layer}.weight": np.full((2, 2), layer, np.float32) for layer in (0, 1)}))
    locations = locate_states(tied, [shared], files.read_range)
    assert locations["layers.2.weight"] == locations["layers.0.weight"]
    assert locations["layers.1.weight"] != locations["layers.0.weight"]
    own = files.add(save({f"layers.{layer}.weight": np.full((2, 2), layer, np.float32) for layer in (1, 2)}))
    with pytest.raises(NotFound, match=r"layers\.0\.weight"):
        locate_states(tied, [own], files.read_range)
    both = files.add(save({f"layers.{layer}.weight": np.full((2, 2), layer, np.float32) for layer in (0, 1, 2)}))
    assert (
        locate_states(tied, [both], files.read_range)["layers.2.weight"]
        == index_safetensors(files.read_range, both)["layers.0.weight"]
    )
