"""Dynamic dimensions: sympy's expressions as trees (walked, never parsed), and the table of symbols."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import sympy
import torch
from torch.utils._sympy import functions

from planner.client.export.roundings import as_integers
from planner.errors import UnsupportedModule
from planner.graph.expression import MAX_EXPONENT, Expression, ExpressionOperator, Operation, SymbolReference
from planner.graph.ir import Symbol

_OPERATORS: Mapping[type, ExpressionOperator] = {
    sympy.Add: ExpressionOperator.ADD,
    sympy.Mul: ExpressionOperator.MULTIPLY,
    sympy.Pow: ExpressionOperator.POWER,
    sympy.Mod: ExpressionOperator.MODULO,
    sympy.Min: ExpressionOperator.MINIMUM,
    sympy.Max: ExpressionOperator.MAXIMUM,
    functions.FloorDiv: ExpressionOperator.FLOOR_DIVIDE,
    functions.CleanDiv: ExpressionOperator.FLOOR_DIVIDE,
    functions.CeilDiv: ExpressionOperator.CEIL_DIVIDE,
    functions.Mod: ExpressionOperator.MODULO,
    functions.PythonMod: ExpressionOperator.MODULO,
    functions.PowByNatural: ExpressionOperator.POWER,
    functions.Min: ExpressionOperator.MINIMUM,
    functions.Max: ExpressionOperator.MAXIMUM,
}


class SymbolTable:
    """Ids of torch's symbols, in order of first use."""

    def __init__(self, shape_env: Any, ranges: Mapping[Any, Any], names: Mapping[Any, str]) -> None:
        self._shape_env = shape_env
        self._ranges = ranges
        self._names = names
        self._ids: dict[sympy.Symbol, int] = {}
        self._expressions: dict[Any, Expression] = {}

    def expression(self, size: Any, where: str) -> Expression:
        """An int or SymInt as a tree. Raises UnsupportedModule for one that has no tree."""
        if isinstance(size, torch.SymInt):
            return self._convert(size.node.expr, where)
        return int(size)

    def symbols(self) -> tuple[Symbol, ...]:
        return tuple(self._symbol(symbol, symbol_id) for symbol, symbol_id in self._ids.items())

    def _convert(self, expression: sympy.Basic, where: str) -> Expression:
        converted = self._expressions.get(expression)
        if converted is None:
            converted = self._expressions[expression] = self._build(expression, where)
        return converted

    def _build(self, expression: sympy.Basic, where: str) -> Expression:
        if isinstance(expression, sympy.Integer):
            return int(expression)
        if isinstance(expression, sympy.Symbol):
            return SymbolReference(self._ids.setdefault(expression, len(self._ids) + 1))
        integers = as_integers(expression)
        if integers is not None:
            return self._convert(integers, where)
        operator = _OPERATORS.get(expression.func)
        if operator is None:
            raise UnsupportedModule(
                f"{where}: its size is {expression}, and {expression.func.__name__} of that cannot be carried; use a "
                "fixed size there, or sizes made by + - * // % min and max; rounded may be a size over an integer, or "
                "times a factor such as 0.5 or 0.3 (not 0.7, since 90 * 0.7 is less than 63: size * 7 // 10 is carried)"
            )
        _check_exponent(expression, operator, where)
        return Operation(operator, tuple(self._convert(operand, where) for operand in expression.args))

    def _symbol(self, symbol: sympy.Symbol, symbol_id: int) -> Symbol:
        lower, upper = self._bounds(symbol)
        hint = self._hint(symbol)
        return Symbol(
            id=symbol_id,
            name=self._names.get(symbol, str(symbol)),
            lower=lower,
            upper=upper,
            hint=max(lower, 1) if hint is None else hint,
            unbacked=hint is None,
        )

    def _bounds(self, symbol: sympy.Symbol) -> tuple[int, int | None]:
        bounds = self._ranges.get(symbol) or self._shape_env.var_to_range.get(symbol)
        if bounds is None:
            return 0, None
        return _bound(bounds.lower, int) or 0, _bound(bounds.upper, int)

    def _hint(self, symbol: sympy.Symbol) -> int | None:
        hint = self._shape_env.backed_var_to_val.get(symbol)
        return None if hint is None else int(hint)


def _check_exponent(expression: sympy.Basic, operator: ExpressionOperator, where: str) -> None:
    if operator is not ExpressionOperator.POWER:
        return
    exponent = expression.args[1]
    if not isinstance(exponent, sympy.Integer) or not 0 <= int(exponent) <= MAX_EXPONENT:
        raise UnsupportedModule(
            f"{where}: its size is {expression}, and an exponent must be a constant from 0 to {MAX_EXPONENT}"
        )


def _bound(bound: Any, convert: Callable[[Any], int]) -> int | None:
    if bound in (sympy.oo, -sympy.oo) or type(bound).__name__ in ("IntInfinity", "NegativeIntInfinity"):
        return None
    number = convert(bound)
    return number if math.isfinite(number) and abs(number) < 2**62 else None
