"""Operators of torch.library, as a package beside torch brings them."""

from __future__ import annotations

import torch

MODULE = "tests.builders.custom_operators"
ALLOWED, UNKNOWN = "planner_tests::scaled_gelu", "planner_tests::shifted"


@torch.library.custom_op(ALLOWED, mutates_args=())
def scaled_gelu(x: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
    return torch.nn.functional.gelu(x) * scale


@scaled_gelu.register_fake
def _(x: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
    return torch.empty_like(x)


@torch.library.custom_op(UNKNOWN, mutates_args=())
def shifted(x: torch.Tensor) -> torch.Tensor:
    return x + 1


@shifted.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)
