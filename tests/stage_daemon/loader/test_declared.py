"""What a graph declares of a tensor, as numbers, and its bounds."""

from __future__ import annotations

import pytest
import torch

from protos.v1 import graph_pb2 as pb
from stage_daemon.errors import InvalidGraph
from stage_daemon.loader.declared import Declared, contiguous_strides, declared_tensor, symbol_hints
from stage_daemon.loader.dtypes import torch_dtype, torch_layout, torch_memory_format


def value(dims: tuple[int, ...], strides: tuple[int, ...] = (), dtype: int = pb.DTYPE_FLOAT32) -> pb.Value:
    value = pb.Value(id=3, name="x", kind=pb.VALUE_KIND_TENSOR, dtype=dtype)
    value.dims.extend(pb.Expression(constant=dim) for dim in dims)
    value.strides.extend(pb.Expression(constant=stride) for stride in strides)
    return value


def test_every_dtype_of_the_wire_is_torchs_of_that_name() -> None:
    for name, number in pb.Dtype.items():
        if number != pb.DTYPE_UNSPECIFIED:
            assert torch_dtype("here", number) is getattr(torch, name.removeprefix("DTYPE_").lower())


def test_layouts_and_memory_formats() -> None:
    assert torch_layout("here", pb.LAYOUT_STRIDED) is torch.strided
    formats = {
        pb.MEMORY_FORMAT_CONTIGUOUS: torch.contiguous_format,
        pb.MEMORY_FORMAT_PRESERVE: torch.preserve_format,
        pb.MEMORY_FORMAT_CHANNELS_LAST: torch.channels_last,
        pb.MEMORY_FORMAT_CHANNELS_LAST_3D: torch.channels_last_3d,
    }
    assert {number: torch_memory_format("here", number) for number in formats} == formats


def test_what_is_not_known_is_named() -> None:
    with pytest.raises(InvalidGraph, match=r"^here: dtype 0 is not one"):
        torch_dtype("here", pb.DTYPE_UNSPECIFIED)
    with pytest.raises(InvalidGraph, match=r"^here: layout 99 is not one"):
        torch_layout("here", 99)
    with pytest.raises(InvalidGraph, match=r"^here: memory format 99 is not one"):
        torch_memory_format("here", 99)


@pytest.mark.parametrize(
    ("dims", "strides"), [((), ()), ((5,), (1,)), ((2, 3, 4), (12, 4, 1)), ((2, 0, 3), (3, 3, 1)), ((4, 1), (1, 1))]
)
def test_contiguous_strides_are_torchs(dims: tuple[int, ...], strides: tuple[int, ...]) -> None:
    assert contiguous_strides(dims) == strides == torch.empty(dims).stride()


@pytest.mark.parametrize(
    ("dims", "strides", "contiguous", "elements"),
    [
        ((2, 3), (3, 1), True, 6),
        ((2, 3), (1, 2), False, 6),
        ((2, 3), (10, 1), False, 13),
        ((4, 3), (0, 1), False, 3),
        ((0, 3), (7, 7), True, 0),
        ((), (), True, 1),
    ],
)
def test_memory_that_a_tensor_spans(
    dims: tuple[int, ...], strides: tuple[int, ...], contiguous: bool, elements: int
) -> None:
    declared = Declared(torch.float64, dims, strides)
    assert declared.is_contiguous is contiguous
    assert declared.storage_elements == elements
    product = 1
    for dim in dims:
        product *= dim
    assert declared.size_bytes == 8 * product


def test_no_strides_mean_contiguous() -> None:
    assert Declared(torch.float32, (2, 3), ()).is_contiguous


def test_dims_and_strides_are_evaluated_at_the_hints() -> None:
    symbolic = value((2, 5), (5, 1), pb.DTYPE_INT8)
    symbolic.dims[0].symbol = 4
    symbolic.strides[0].symbol = 6
    assert declared_tensor("", symbolic, {4: 11, 6: 8}) == Declared(torch.int8, (11, 5), (8, 1))


@pytest.mark.parametrize("dims", [(2**40,), (2**40, 2**8), (1,) * 64, (0, 2**40, 2**40)], ids=str)
def test_the_largest_that_is_allowed(dims: tuple[int, ...]) -> None:
    assert declared_tensor("", value(dims), {}).dims == dims


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (value((2**40 + 1,)), r"dimension 0 is 1099511627777, needs 0 to 2\^40"),
        (value((3, -1)), r"dimension 1 is -1, needs 0 to 2\^40"),
        (value((3, 1), (1, -1)), r"stride 1 is -1, needs 0 to 2\^40"),
        (value((2**40, 2**8 + 1)), r"bytes, at most 2\^50 are allowed"),
        (value((1,) * 65), "65 dimensions, at most 64 are allowed"),
        (value((3, 4), (1,)), "1 strides for 2 dimensions"),
        (value((3,), dtype=77), "dtype 77 is not one"),
    ],
)
def test_what_is_out_of_bounds_is_named(wrong: pb.Value, words: str) -> None:
    with pytest.raises(InvalidGraph, match=rf"^subgraph 1, value 3 \('x'\).*{words}"):
        declared_tensor("subgraph 1, ", wrong, {})


def test_hints_of_symbols() -> None:
    graph = pb.Graph(symbols=[pb.Symbol(id=1, name="batch", hint=4), pb.Symbol(id=9, name="length", hint=6)])
    assert symbol_hints("", graph) == {1: 4, 9: 6}
    for wrong in (1, 0):
        graph.symbols[1].id = wrong
        with pytest.raises(InvalidGraph, match=rf"^here: symbol {wrong} \('length'\): an id must be"):
            symbol_hints("here: ", graph)
