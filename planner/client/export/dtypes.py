"""torch's element types as ours."""

from __future__ import annotations

import torch

from planner.errors import UnsupportedModule
from planner.graph.ir import Dtype

_DTYPES = {getattr(torch, dtype.value): dtype for dtype in Dtype}


def has_fractions(tensor: torch.Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()


def dtype_of(dtype: torch.dtype, where: str) -> Dtype:
    try:
        return _DTYPES[dtype]
    except KeyError:
        raise UnsupportedModule(
            f"{where}: {dtype} cannot be carried; convert it to one of {', '.join(d.value for d in Dtype)}"
        ) from None
