"""Products with weights of few bits: as torch computes them, and never past the end of what they are given."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from protos.v1 import graph_pb2 as pb
from stage_daemon.errors import InvalidRequest
from stage_daemon.loader.operators import operator_table

ROWS = torch.ones(4, 64, dtype=torch.bfloat16)
WEIGHT = torch.ops.aten._convert_weight_to_int4pack_for_cpu(torch.full((32, 64), 9, dtype=torch.int32), 1)


def called(name: str, *args: Any, **kwargs: Any) -> torch.Tensor:
    """As stages call it."""
    result: torch.Tensor = operator_table()[pb.OPERATOR_KIND_ATEN, name, "default"].function(*args, **kwargs)
    return result


def int4_product(*args: Any) -> torch.Tensor:
    return called("aten::_weight_int4pack_mm_for_cpu", *args)


def scales(*dims: int) -> torch.Tensor:
    return torch.ones(dims, dtype=torch.bfloat16)


def test_a_row_is_weighed_group_by_group() -> None:
    # (9 - 8) times a scale of 1, and a zero of 1, in each of 64 places.
    assert torch.equal(int4_product(ROWS, WEIGHT, 32, scales(2, 32, 2)), torch.full((4, 32), 128.0).bfloat16())


@pytest.mark.parametrize(("group_size", "dims"), [(32, (1, 32, 2)), (32, (0, 32, 2)), (32, (32, 2)), (0, (2, 32, 2))])
def test_scales_that_are_too_few_are_refused(group_size: int, dims: tuple[int, ...]) -> None:
    with pytest.raises(InvalidRequest, match=r"pack scales and zeros as \[groups, columns, 2\]"):
        int4_product(ROWS, WEIGHT, group_size, scales(*dims))


LEFT = torch.randn(4, 32, generator=torch.Generator().manual_seed(1)).to(torch.float8_e4m3fn)
RIGHT = torch.randn(48, 32, generator=torch.Generator().manual_seed(2)).to(torch.float8_e4m3fn).t()


@pytest.mark.parametrize("dims", [((), ()), ((4, 1), (1, 48))], ids=["one", "each"])
def test_float8_matrices_are_multiplied_with_their_scales(dims: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    scale_rows, scale_columns = (torch.rand(one) + 0.5 for one in dims)
    bias = torch.arange(48.0).bfloat16()
    product = called("aten::_scaled_mm", LEFT, RIGHT, scale_rows, scale_columns, bias, None, torch.bfloat16)
    expected = (LEFT.float() * scale_rows) @ (RIGHT.float() * scale_columns) + bias.float()
    assert product.dtype == torch.bfloat16
    assert torch.allclose(product.float(), expected, rtol=2**-7, atol=2**-6)


ONE = torch.ones(())


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"self": LEFT[:, :16]}, r"\[m, k\] and \[k, n\]"),
        ({"self": LEFT.bfloat16()}, "float8 on both sides"),
        ({"mat2": RIGHT[:, :24]}, "k and n that 16 divides"),
        ({"mat2": RIGHT.contiguous()}, "a transposed second matrix"),
        ({"self": LEFT.t().contiguous().t()}, "a contiguous first"),
        ({"scale_a": ONE.double()}, "scales of float32"),
        ({"scale_a": torch.ones(4, 1)}, "for each row and column"),
        ({"scale_a": torch.ones(3, 1), "scale_b": torch.ones(1, 48)}, "for each row and column"),
        ({"scale_a": torch.ones(4, 1), "scale_b": torch.ones(1, 1).expand(1, 48)}, "for each row and column"),
        ({"bias": torch.ones(47)}, "a bias for each column"),
        ({"scale_result": ONE}, "no scale of the result"),
        ({"out_dtype": torch.float8_e4m3fn}, "no scale of the result"),
        ({"out_dtype": None}, "no scale of the result"),
    ],
)
def test_what_no_kernel_checks_of_a_float8_product_is_refused(changes: dict[str, object], why: str) -> None:
    arguments = {"self": LEFT, "mat2": RIGHT, "scale_a": ONE, "scale_b": ONE, "out_dtype": torch.bfloat16} | changes
    with pytest.raises(InvalidRequest, match=why):
        called("aten::_scaled_mm", **arguments)
