"""Expression trees to messages and back. The planner's plans carry them too."""

from __future__ import annotations

from planner.errors import GraphError
from planner.graph.expression import Expression, Operation, SymbolReference
from planner.wire.graph.bounds import check_depth
from planner.wire.graph.enumerations import EXPRESSION_OPERATORS
from protos.v1 import graph_pb2


def expression_to_proto(expression: Expression, depth: int = 0) -> graph_pb2.Expression:
    """Raises GraphError for one nested too deep."""
    check_depth("expression", depth)
    if isinstance(expression, int):
        return graph_pb2.Expression(constant=expression)
    if isinstance(expression, SymbolReference):
        return graph_pb2.Expression(symbol=expression.symbol_id)
    operation = graph_pb2.Expression.Operation(
        operator=EXPRESSION_OPERATORS.number[expression.operator],
        operands=[expression_to_proto(operand, depth + 1) for operand in expression.operands],
    )
    return graph_pb2.Expression(operation=operation)


def expression_from_proto(message: graph_pb2.Expression, depth: int = 0) -> Expression:
    """Raises GraphError for an empty expression or one nested too deep."""
    check_depth("expression", depth)
    kind = message.WhichOneof("kind")
    if kind == "constant":
        return message.constant
    if kind == "symbol":
        return SymbolReference(message.symbol)
    if kind == "operation":
        operator = EXPRESSION_OPERATORS.member(message.operation.operator)
        operands = tuple(expression_from_proto(operand, depth + 1) for operand in message.operation.operands)
        return Operation(operator, operands)
    raise GraphError("expression is empty")
