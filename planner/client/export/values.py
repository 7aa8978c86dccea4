"""What stands for a tensor or scalar in a captured program, as a value record."""

from __future__ import annotations

from typing import Any

import torch

from planner.client.export.dtypes import dtype_of
from planner.client.export.symbols import SymbolTable
from planner.errors import UnsupportedModule
from planner.graph.expression import Expression
from planner.graph.ir import Value, ValueKind


def value_of(fake: Any, value_id: int, name: str, symbols: SymbolTable, *, requires_grad: bool) -> Value:
    """Raises UnsupportedModule for what no value record can hold."""
    if isinstance(fake, torch.Tensor):
        return _tensor(fake, value_id, name, symbols, requires_grad)
    if isinstance(fake, bool | torch.SymBool):
        return Value(id=value_id, kind=ValueKind.SYM_BOOL, name=name)
    if isinstance(fake, float | torch.SymFloat):
        return Value(id=value_id, kind=ValueKind.SYM_FLOAT, name=name)
    if isinstance(fake, int | torch.SymInt):
        return Value(id=value_id, kind=ValueKind.SYM_INT, expression=_known(fake, name, symbols), name=name)
    raise UnsupportedModule(f"{name}: gives a {type(fake).__name__}; only tensors and numbers can be carried")


def _tensor(fake: torch.Tensor, value_id: int, name: str, symbols: SymbolTable, requires_grad: bool) -> Value:
    if fake.layout is not torch.strided:
        raise UnsupportedModule(f"{name}: is {fake.layout}; only dense tensors can be carried")
    dims = tuple(symbols.expression(size, name) for size in fake.shape)
    return Value(
        id=value_id,
        kind=ValueKind.TENSOR,
        dtype=dtype_of(fake.dtype, name),
        dims=dims,
        strides=_strides(fake, dims, name, symbols),
        device_class=fake.device.type,
        name=name,
        requires_grad=requires_grad,
    )


def _known(number: Any, name: str, symbols: SymbolTable) -> Expression | None:
    try:
        return symbols.expression(number, name)
    except UnsupportedModule:
        return None


def _strides(
    fake: torch.Tensor, dims: tuple[Expression, ...], name: str, symbols: SymbolTable
) -> tuple[Expression, ...]:
    """Empty if contiguous, which the stride of a dimension of size 1 has no part in."""
    strides = tuple(symbols.expression(stride, name) for stride in fake.stride())
    expected: Any = 1
    for dim, stride, size, step in reversed(list(zip(dims, strides, fake.shape, fake.stride(), strict=True))):
        if dim != 1 and not _same(step, stride, expected):
            return strides
        expected = expected * size
    return ()


def _same(step: Any, stride: Expression, expected: Any) -> bool:
    if isinstance(step, int) and isinstance(expected, int):
        return step == expected
    actual = step.node.expr if isinstance(step, torch.SymInt) else step
    needed = expected.node.expr if isinstance(expected, torch.SymInt) else expected
    return bool(actual == needed)
