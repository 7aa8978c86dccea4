"""The one higher-order operator: `cond` runs one of two subgraphs on the same operands."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

Branch = Callable[..., tuple[Any, ...]]


def run_cond(
    condition: torch.Tensor | bool, if_true: Branch, if_false: Branch, operands: Sequence[Any]
) -> tuple[Any, ...]:
    """A tensor condition has one element."""
    return if_true(*operands) if bool(condition) else if_false(*operands)
