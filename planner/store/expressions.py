"""Expression trees as JSON: 8, {"symbol": 3}, {"operator": "add", "operands": [...]}."""

from __future__ import annotations

from typing import Any

from planner.graph.expression import Expression, ExpressionOperator, Operation, SymbolReference


def expression_to_json(expression: Expression) -> Any:
    if isinstance(expression, int):
        return expression
    if isinstance(expression, SymbolReference):
        return {"symbol": expression.symbol_id}
    operands = [expression_to_json(operand) for operand in expression.operands]
    return {"operator": expression.operator.value, "operands": operands}


def expression_from_json(content: Any) -> Expression:
    if isinstance(content, int):
        return content
    if "symbol" in content:
        return SymbolReference(int(content["symbol"]))
    operands = tuple(expression_from_json(operand) for operand in content["operands"])
    return Operation(ExpressionOperator(content["operator"]), operands)
