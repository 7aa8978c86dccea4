"""Dimensions as functions of symbols: values by hand, and what has none."""

from __future__ import annotations

import pytest

from planner.errors import GraphError
from planner.graph.expression import (
    Expression,
    ExpressionOperator,
    Operation,
    SymbolReference,
    evaluate,
    symbols_in,
)

A, B = SymbolReference(1), SymbolReference(2)
VALUES = {1: 17, 2: 5}


@pytest.mark.parametrize(
    ("operator", "operands", "value"),
    [
        (ExpressionOperator.ADD, (A, B, 3), 25),
        (ExpressionOperator.ADD, (A,), 17),
        (ExpressionOperator.MULTIPLY, (A, B, 2), 170),
        (ExpressionOperator.FLOOR_DIVIDE, (A, B), 3),
        (ExpressionOperator.FLOOR_DIVIDE, (-17, B), -4),
        (ExpressionOperator.CEIL_DIVIDE, (A, B), 4),
        (ExpressionOperator.CEIL_DIVIDE, (15, B), 3),
        (ExpressionOperator.CEIL_DIVIDE, (-17, B), -3),
        (ExpressionOperator.MODULO, (A, B), 2),
        (ExpressionOperator.MODULO, (-1, B), 4),
        (ExpressionOperator.POWER, (B, 3), 125),
        (ExpressionOperator.POWER, (B, 0), 1),
        (ExpressionOperator.POWER, (2, 64), 1 << 64),
        (ExpressionOperator.MINIMUM, (A, B, 9), 5),
        (ExpressionOperator.MAXIMUM, (A, B, 9), 17),
    ],
)
def test_values_by_hand(operator: ExpressionOperator, operands: tuple[Expression, ...], value: int) -> None:
    assert evaluate(Operation(operator, operands), VALUES) == value


def test_operations_nest() -> None:
    half = Operation(ExpressionOperator.FLOOR_DIVIDE, (A, 2))
    whole = Operation(ExpressionOperator.ADD, (Operation(ExpressionOperator.MULTIPLY, (half, B)), 1))
    assert evaluate(whole, VALUES) == 8 * 5 + 1
    assert list(symbols_in(Operation(ExpressionOperator.ADD, (whole, A, 4)))) == [1, 2, 1]
    assert list(symbols_in(7)) == []
    assert evaluate(7, {}) == 7


@pytest.mark.parametrize(
    ("operator", "operands", "message"),
    [
        (ExpressionOperator.FLOOR_DIVIDE, (A, 0), "divides by zero"),
        (ExpressionOperator.MODULO, (A, 0), "divides by zero"),
        (ExpressionOperator.CEIL_DIVIDE, (A, 0), "divides by zero"),
        (ExpressionOperator.POWER, (A, -1), "exponent -1, needs 0 to 64"),
        (ExpressionOperator.POWER, (A, 65), "exponent 65, needs 0 to 64"),
        (ExpressionOperator.ADD, (A, SymbolReference(9)), "no value for symbol 9"),
    ],
)
def test_what_has_no_value_is_an_error(
    operator: ExpressionOperator, operands: tuple[Expression, ...], message: str
) -> None:
    with pytest.raises(GraphError, match=message):
        evaluate(Operation(operator, operands), VALUES)


BINARY = ["floor_divide", "modulo", "ceil_divide", "power"]
OTHERS = ["add", "multiply", "minimum", "maximum"]


@pytest.mark.parametrize("name", BINARY)
@pytest.mark.parametrize("operands", [(), (A,), (A, B, 1)])
def test_binary_operators_take_two_operands(name: str, operands: tuple[Expression, ...]) -> None:
    assert Operation(ExpressionOperator(name), (A, 2)).operands == (A, 2)
    with pytest.raises(GraphError, match=f"expression {name}: {len(operands)} operands, needs 2"):
        Operation(ExpressionOperator(name), operands)


@pytest.mark.parametrize("name", OTHERS)
def test_other_operators_take_any_number_but_none(name: str) -> None:
    assert [len(Operation(ExpressionOperator(name), (A,) * count).operands) for count in (1, 2, 3)] == [1, 2, 3]
    with pytest.raises(GraphError, match="0 operands, needs at least 1"):
        Operation(ExpressionOperator(name), ())
