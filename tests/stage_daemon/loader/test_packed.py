"""Half-byte weights: as torch computes them, and never past the end of their scales."""

from __future__ import annotations

import pytest
import torch

from stage_daemon.errors import InvalidRequest
from stage_daemon.loader.packed import int4_product

ROWS = torch.ones(4, 64, dtype=torch.bfloat16)
WEIGHT = torch.ops.aten._convert_weight_to_int4pack_for_cpu(torch.full((32, 64), 9, dtype=torch.int32), 1)


def scales(*dims: int) -> torch.Tensor:
    return torch.ones(dims, dtype=torch.bfloat16)


def test_a_row_is_weighed_group_by_group() -> None:
    # (9 - 8) times a scale of 1, and a zero of 1, in each of 64 places.
    assert torch.equal(int4_product(ROWS, WEIGHT, 32, scales(2, 32, 2)), torch.full((4, 32), 128.0).bfloat16())


@pytest.mark.parametrize(("group_size", "dims"), [(32, (1, 32, 2)), (32, (0, 32, 2)), (32, (32, 2)), (0, (2, 32, 2))])
def test_scales_that_are_too_few_are_refused(group_size: int, dims: tuple[int, ...]) -> None:
    with pytest.raises(InvalidRequest, match=r"pack scales and zeros as \[groups, columns, 2\]"):
        int4_product(ROWS, WEIGHT, group_size, scales(*dims))
