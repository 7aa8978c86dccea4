"""Evaluates symbolic integers by walking their trees. Cost is bounded before anything is computed."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence

from protos.v1 import graph_pb2 as pb
from stage_daemon.errors import InvalidGraph
from stage_daemon.loader.bounds import MAX_EXPONENT, MAX_EXPRESSION_BITS, MAX_EXPRESSION_DEPTH

_Operation = pb.Expression.Operation
_BINARY = frozenset(
    {
        _Operation.OPERATOR_FLOOR_DIVIDE,
        _Operation.OPERATOR_MODULO,
        _Operation.OPERATOR_CEIL_DIVIDE,
        _Operation.OPERATOR_POWER,
    }
)


def evaluate(
    where: str, expression: pb.Expression, symbol_values: Mapping[int, int], depth_left: int = MAX_EXPRESSION_DEPTH
) -> int:
    """The expression's value; InvalidGraph, naming `where`, if it has none or would take too much to compute."""
    kind = expression.WhichOneof("kind")
    if kind == "constant":
        return expression.constant
    if kind == "symbol":
        if expression.symbol not in symbol_values:
            raise InvalidGraph(f"{where}: speaks of symbol {expression.symbol}, which the graph does not have")
        return symbol_values[expression.symbol]
    if kind is None:
        raise InvalidGraph(f"{where}: an expression is empty")
    if depth_left <= 0:
        raise InvalidGraph(f"{where}: the expression is nested more than {MAX_EXPRESSION_DEPTH} deep")
    operation = expression.operation
    operands = [evaluate(where, operand, symbol_values, depth_left - 1) for operand in operation.operands]
    return _apply(where, operation.operator, operands)


def symbols_in(expression: pb.Expression) -> Iterator[int]:
    """Of an expression that `evaluate` takes; nothing for an empty one."""
    if expression.WhichOneof("kind") == "symbol":
        yield expression.symbol
    for operand in expression.operation.operands:
        yield from symbols_in(operand)


def _apply(where: str, operator: int, operands: Sequence[int]) -> int:
    if operator not in _APPLY:
        raise InvalidGraph(f"{where}: expression operator {operator} is not one that this daemon knows")
    if (len(operands) != 2) if operator in _BINARY else not operands:
        raise InvalidGraph(f"{where}: an expression has {len(operands)} operands")
    if _bits(operator, operands) > MAX_EXPRESSION_BITS:
        raise InvalidGraph(f"{where}: the expression takes more than {MAX_EXPRESSION_BITS} bits")
    try:
        return _APPLY[operator](operands)
    except ZeroDivisionError:
        raise InvalidGraph(f"{where}: the expression divides by zero") from None


def _bits(operator: int, operands: Sequence[int]) -> int:
    if operator == _Operation.OPERATOR_POWER:
        exponent = operands[1]
        return operands[0].bit_length() * exponent if 0 <= exponent <= MAX_EXPONENT else MAX_EXPRESSION_BITS + 1
    if operator == _Operation.OPERATOR_MULTIPLY:
        return sum(operand.bit_length() for operand in operands)
    return max(operand.bit_length() for operand in operands)


_APPLY: Mapping[int, Callable[[Sequence[int]], int]] = {
    _Operation.OPERATOR_ADD: sum,
    _Operation.OPERATOR_MULTIPLY: math.prod,
    _Operation.OPERATOR_FLOOR_DIVIDE: lambda operands: operands[0] // operands[1],
    _Operation.OPERATOR_MODULO: lambda operands: operands[0] % operands[1],
    _Operation.OPERATOR_CEIL_DIVIDE: lambda operands: -(-operands[0] // operands[1]),
    _Operation.OPERATOR_POWER: lambda operands: int(operands[0] ** operands[1]),
    _Operation.OPERATOR_MINIMUM: min,
    _Operation.OPERATOR_MAXIMUM: max,
}
