"""Expressions come out of their JSON as they went in."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from planner.graph.expression import Expression, ExpressionOperator, Operation, SymbolReference
from planner.store.expressions import expression_from_json, expression_to_json
from tests.random_examples import random_examples

leaves: st.SearchStrategy[Expression] = st.integers(-(2**63), 2**63 - 1) | st.builds(
    SymbolReference, st.integers(0, 2**31)
)
expressions = st.recursive(
    leaves,
    lambda inner: st.builds(
        Operation,
        st.sampled_from(list(ExpressionOperator)),
        st.lists(inner, min_size=2, max_size=2).map(tuple),
    ),
    max_leaves=8,
)


def test_the_json_is_what_the_module_says() -> None:
    expression = Operation(ExpressionOperator.ADD, (SymbolReference(3), -8))
    assert expression_to_json(8) == 8
    assert expression_to_json(expression) == {"operator": "add", "operands": [{"symbol": 3}, -8]}


@random_examples(100)
@given(expressions)
def test_any_expression_is_the_same_after_its_json(expression: Expression) -> None:
    assert expression_from_json(json.loads(json.dumps(expression_to_json(expression)))) == expression
