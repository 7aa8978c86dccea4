"""Symbolic integers as trees: what a dimension is, as a function of the dynamic dimensions.

Evaluated by walking, never by `eval`. Immutable and hashable.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from planner.errors import GraphError

MAX_EXPONENT = 64


class ExpressionOperator(Enum):
    ADD = "add"
    MULTIPLY = "multiply"
    FLOOR_DIVIDE = "floor_divide"
    MODULO = "modulo"
    CEIL_DIVIDE = "ceil_divide"
    POWER = "power"
    MINIMUM = "minimum"
    MAXIMUM = "maximum"

    @property
    def is_binary(self) -> bool:
        return self in _BINARY


_BINARY = frozenset(
    {
        ExpressionOperator.FLOOR_DIVIDE,
        ExpressionOperator.MODULO,
        ExpressionOperator.CEIL_DIVIDE,
        ExpressionOperator.POWER,
    }
)


@dataclass(frozen=True, slots=True)
class SymbolReference:
    symbol_id: int


@dataclass(frozen=True, slots=True)
class Operation:
    """`operator` applied to `operands`: exactly two for a binary operator, at least one otherwise."""

    operator: ExpressionOperator
    operands: tuple[Expression, ...]

    def __post_init__(self) -> None:
        needed = "2" if self.operator.is_binary else "at least 1"
        if len(self.operands) != 2 if self.operator.is_binary else not self.operands:
            raise GraphError(f"expression {self.operator.value}: {len(self.operands)} operands, needs {needed}")


# A constant is an int itself.
Expression = int | SymbolReference | Operation


def evaluate(expression: Expression, symbol_values: Mapping[int, int]) -> int:
    """The expression's value where each symbol id stands for `symbol_values[id]`.

    Raises GraphError for a symbol without a value, a division by zero or an exponent outside 0..64.
    """
    if isinstance(expression, int):
        return expression
    if isinstance(expression, SymbolReference):
        try:
            return symbol_values[expression.symbol_id]
        except KeyError:
            raise GraphError(f"no value for symbol {expression.symbol_id}") from None
    return _APPLY[expression.operator]([evaluate(operand, symbol_values) for operand in expression.operands])


def symbols_in(expression: Expression) -> Iterator[int]:
    """Ids of the symbols that it speaks of, with repetitions."""
    if isinstance(expression, SymbolReference):
        yield expression.symbol_id
    elif isinstance(expression, Operation):
        for operand in expression.operands:
            yield from symbols_in(operand)


def _divide(values: Sequence[int]) -> int:
    return values[0] // _non_zero(values[1])


def _modulo(values: Sequence[int]) -> int:
    return values[0] % _non_zero(values[1])


def _ceil_divide(values: Sequence[int]) -> int:
    return -(-values[0] // _non_zero(values[1]))


def _power(values: Sequence[int]) -> int:
    base, exponent = values
    if not 0 <= exponent <= MAX_EXPONENT:
        raise GraphError(f"expression power: exponent {exponent}, needs 0 to {MAX_EXPONENT}")
    return int(base**exponent)


def _non_zero(divisor: int) -> int:
    if divisor == 0:
        raise GraphError("expression divides by zero")
    return divisor


_APPLY: Mapping[ExpressionOperator, Callable[[Sequence[int]], int]] = {
    ExpressionOperator.ADD: sum,
    ExpressionOperator.MULTIPLY: math.prod,
    ExpressionOperator.FLOOR_DIVIDE: _divide,
    ExpressionOperator.MODULO: _modulo,
    ExpressionOperator.CEIL_DIVIDE: _ceil_divide,
    ExpressionOperator.POWER: _power,
    ExpressionOperator.MINIMUM: min,
    ExpressionOperator.MAXIMUM: max,
}
