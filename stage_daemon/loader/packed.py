"""The product with a weight of packed half bytes, whose kernel trusts a size that nobody else checks."""

from __future__ import annotations

import torch

from stage_daemon.errors import InvalidRequest


def int4_product(
    rows: torch.Tensor, weight: torch.Tensor, group_size: int, scales_and_zeros: torch.Tensor
) -> torch.Tensor:
    """torch's kernel reads scales for each group of a row, and past their end where there are fewer."""
    needed = -(-rows.shape[-1] // max(1, group_size))
    if scales_and_zeros.dim() != 3 or scales_and_zeros.shape[0] < needed:
        raise InvalidRequest(
            f"scales of dims {list(scales_and_zeros.shape)} for {needed} groups of {group_size} in rows of "
            f"{rows.shape[-1]}; pack scales and zeros as [groups, columns, 2]"
        )
    product: torch.Tensor = torch.ops.aten._weight_int4pack_mm_for_cpu(rows, weight, group_size, scales_and_zeros)
    return product
