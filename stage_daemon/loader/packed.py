"""What torch's kernels trust of products with weights of few bits. Looked at before the call, by the schema's names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from stage_daemon.errors import InvalidRequest

# Rows and columns of float8 matrices come in such blocks, on every device that multiplies them.
_BLOCK = 16
_FLOAT8 = (torch.float8_e4m3fn, torch.float8_e5m2)
_RESULTS = (torch.float32, torch.float16, torch.bfloat16)


def check_int4_product(arguments: Mapping[str, Any]) -> None:
    """The kernel reads scales for each group of a row, and past their end where there are fewer."""
    rows, group_size, scales = arguments["self"], arguments["qGroupSize"], arguments["qScaleAndZeros"]
    needed = -(-rows.shape[-1] // max(1, group_size))
    if scales.dim() != 3 or scales.shape[0] < needed:
        raise InvalidRequest(
            f"scales of dims {list(scales.shape)} for {needed} groups of {group_size} in rows of {rows.shape[-1]};"
            " pack scales and zeros as [groups, columns, 2]"
        )


def check_float8_product(arguments: Mapping[str, Any]) -> None:
    """Of float8 matrices with one scale each, or one for each row and each column; other scales are not taken."""
    rows, columns = arguments["self"], arguments["mat2"]
    scale_rows, scale_columns = arguments["scale_a"], arguments["scale_b"]
    bias, out_dtype = arguments.get("bias"), arguments.get("out_dtype")
    operands = ", ".join(f"{one.dtype} {list(one.shape)}" for one in (rows, columns, scale_rows, scale_columns))
    if rows.dim() != 2 or columns.dim() != 2 or rows.shape[1] != columns.shape[0]:
        raise InvalidRequest(f"a float8 product of {operands}: needs two matrices, [m, k] and [k, n]")
    scales = ((scale_rows, (rows.shape[0], 1)), (scale_columns, (1, columns.shape[1])))
    single = all(scale.numel() == 1 for scale, _ in scales)
    wide = all(scale.shape == dims and scale.is_contiguous() for scale, dims in scales)
    biased = bias is None or (bias.shape == columns.shape[1:] and bias.dtype in _RESULTS and bias.is_contiguous())
    is_result = arguments.get("scale_result") is None and out_dtype in _RESULTS
    checks = {
        "float8 on both sides": rows.dtype in _FLOAT8 and columns.dtype in _FLOAT8,
        f"k and n that {_BLOCK} divides": not any(size % _BLOCK for size in columns.shape),
        "a contiguous first and a transposed second matrix": rows.is_contiguous() and columns.mT.is_contiguous(),
        "scales of float32": all(scale.dtype == torch.float32 for scale, _ in scales),
        "a scale for each matrix, or for each row and column": single or wide,
        "a bias for each column": biased,
        "no scale of the result, which is float32, float16 or bfloat16": is_result,
    }
    if lacking := [need for need, met in checks.items() if not met]:
        raise InvalidRequest(f"a float8 product of {operands} giving {out_dtype}: needs {'; '.join(lacking)}")
