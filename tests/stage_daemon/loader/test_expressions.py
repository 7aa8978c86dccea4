"""Symbolic integers: what each operator gives, and what is refused before it is computed."""

from __future__ import annotations

import pytest

from protos.v1 import graph_pb2 as pb
from stage_daemon.errors import InvalidGraph
from stage_daemon.loader.bounds import MAX_EXPRESSION_DEPTH
from stage_daemon.loader.expressions import evaluate

Operation = pb.Expression.Operation
ADD, MULTIPLY = Operation.OPERATOR_ADD, Operation.OPERATOR_MULTIPLY
FLOOR_DIVIDE, CEIL_DIVIDE = Operation.OPERATOR_FLOOR_DIVIDE, Operation.OPERATOR_CEIL_DIVIDE
MODULO, POWER = Operation.OPERATOR_MODULO, Operation.OPERATOR_POWER
MINIMUM, MAXIMUM = Operation.OPERATOR_MINIMUM, Operation.OPERATOR_MAXIMUM


def call(operator: int, *operands: int | pb.Expression) -> pb.Expression:
    return pb.Expression(
        operation=Operation(
            operator=operator,
            operands=[pb.Expression(constant=operand) if isinstance(operand, int) else operand for operand in operands],
        )
    )


SYMBOL = pb.Expression(symbol=7)


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        (pb.Expression(constant=-5), -5),
        (SYMBOL, 10),
        (call(ADD, 2, 3, 4), 9),
        (call(ADD, 2), 2),
        (call(MULTIPLY, 2, 3, -4), -24),
        (call(FLOOR_DIVIDE, 7, 2), 3),
        (call(FLOOR_DIVIDE, -7, 2), -4),
        (call(CEIL_DIVIDE, 7, 2), 4),
        (call(CEIL_DIVIDE, -7, 2), -3),
        (call(CEIL_DIVIDE, 8, 2), 4),
        (call(MODULO, 7, 3), 1),
        (call(MODULO, -7, 3), 2),
        (call(POWER, 3, 4), 81),
        (call(POWER, 3, 0), 1),
        (call(POWER, 2, 64), 2**64),
        (call(MINIMUM, 5, 2, 9), 2),
        (call(MAXIMUM, 5, 2, 9), 9),
        (call(ADD, call(MULTIPLY, 2, SYMBOL), 1), 21),
        # 2^2016 squared takes 4034 bits.
        (call(MULTIPLY, call(POWER, 2**62, 32), call(POWER, 2**62, 32)), 2 ** (62 * 64)),
    ],
    ids=str,
)
def test_value(expression: pb.Expression, value: int) -> None:
    assert evaluate("here", expression, {7: 10}) == value


def nested(depth: int) -> pb.Expression:
    """1 + (1 + (... + 1)); made from outside in, since protobuf copies no more than a hundred levels."""
    outermost = expression = pb.Expression()
    for _ in range(depth):
        expression.operation.operator = ADD
        expression.operation.operands.add(constant=1)
        expression = expression.operation.operands.add()
    expression.constant = 1
    return outermost


@pytest.mark.parametrize(
    ("expression", "words"),
    [
        (pb.Expression(), "an expression is empty"),
        (pb.Expression(symbol=8), "speaks of symbol 8, which the graph does not have"),
        (call(0, 1, 2), "expression operator 0 is not one"),
        (call(ADD), "an expression has 0 operands"),
        (call(POWER, 2), "an expression has 1 operands"),
        (call(MODULO, 2, 3, 4), "an expression has 3 operands"),
        (call(FLOOR_DIVIDE, 1, 0), "divides by zero"),
        (call(CEIL_DIVIDE, 1, 0), "divides by zero"),
        (call(MODULO, 1, 0), "divides by zero"),
        (call(POWER, 2, 65), "takes more than 4096 bits"),
        (call(POWER, 2, -1), "takes more than 4096 bits"),
        (call(POWER, call(POWER, 2**62, 2), 64), "takes more than 4096 bits"),
        (call(MULTIPLY, call(POWER, 2**62, 64), call(POWER, 2**62, 3)), "takes more than 4096 bits"),
        (nested(MAX_EXPRESSION_DEPTH + 1), "nested more than 64 deep"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_has_no_bounded_value_is_refused_by_name(expression: pb.Expression, words: str) -> None:
    with pytest.raises(InvalidGraph, match=f"^here: .*{words}"):
        evaluate("here", expression, {7: 10})


def test_the_deepest_that_is_allowed() -> None:
    assert evaluate("here", nested(MAX_EXPRESSION_DEPTH), {}) == MAX_EXPRESSION_DEPTH + 1
