"""Dense bytes and back."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given

from stage_daemon.transport.layout import TensorLayout, pack, unpack
from tests.random_examples import random_examples


def test_dense_memory_is_sent_without_a_copy() -> None:
    tensor = torch.randn(4, 3)[1:].t()
    layout, payload = pack(tensor)
    assert payload.data_ptr() == tensor.data_ptr()
    assert payload.numel() == tensor.nbytes
    assert layout.is_dense


def test_stride_0_dimensions_travel_once() -> None:
    layout, payload = pack(torch.randn(3, 1).expand(3, 1000))
    assert payload.numel() == 12
    assert unpack(layout, payload).stride() == (1, 0)


def test_a_thin_slice_of_much_becomes_dense() -> None:
    layout, payload = pack(torch.randn(4, 300)[:, 7:8])
    assert payload.numel() == 16
    assert layout.extent == 4


@pytest.mark.parametrize(
    ("dims", "strides"),
    [
        ((-1,), (1,)),
        ((2,), (-1,)),
        ((2, 2), (1,)),
        ((1 << 62, 4, 0), (0, 0, 0)),
        ((1 << 32, 1 << 32), (0, 0)),
        ((0, 1 << 63), (1, 1)),
    ],
)
def test_impossible_layouts(dims: tuple[int, ...], strides: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="dims"):
        TensorLayout(dtype=torch.float32, dims=dims, strides=strides)


def test_what_can_be_counted_can_be_made() -> None:
    for dims in ((0, (1 << 63) - 1), (1, 3), ((1 << 62), 1, 0)):
        layout = TensorLayout(dtype=torch.float32, dims=dims, strides=(0,) * len(dims))
        assert unpack(layout, torch.zeros(layout.size_bytes, dtype=torch.uint8)).shape == dims


@random_examples(100)
@given(
    dims=st.lists(st.integers(0, 4), max_size=4),
    order=st.randoms(use_true_random=False),
    steps=st.lists(st.integers(1, 3), min_size=4, max_size=4),
    expanded=st.sets(st.integers(0, 3)),
)
def test_any_view_comes_back(dims: list[int], order: object, steps: list[int], expanded: set[int]) -> None:
    memory = torch.arange(32768.0)
    strides = [0] * len(dims)
    positions = list(range(len(dims)))
    order.shuffle(positions)
    step = 1
    for position in positions:
        step *= steps[position]
        strides[position] = 0 if position in expanded else step
        step *= max(dims[position], 1)
    tensor = memory.as_strided(dims, strides, 5)
    layout, payload = pack(tensor)
    assert torch.equal(unpack(layout, payload.clone()), tensor)
    assert payload.numel() == layout.size_bytes <= tensor.nbytes
