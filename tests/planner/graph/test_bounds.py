"""Every bound is allowed to be reached and not to be passed, and errors stay short."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from planner.errors import GraphError
from planner.graph.bounds import (
    MAX_ARGUMENT_DEPTH,
    MAX_EXPRESSION_DEPTH,
    MAX_NAME_LENGTH,
    MAX_TREE_DEPTH,
    check_argument_depth,
    check_count,
    check_expression,
    check_label,
    check_name,
    count_leaves,
    shown,
    shown_value,
)
from planner.graph.expression import Expression, ExpressionOperator, Operation, SymbolReference
from planner.graph.ir import (
    Argument,
    ArgumentList,
    PyTree,
    TreeDict,
    TreeLeaf,
    TreeList,
    TreeNone,
    TreeObject,
    TreeTuple,
)

SYMBOLS = frozenset({1})
A = SymbolReference(1)


def refused(call: Callable[[], object], message: str) -> None:
    with pytest.raises(GraphError, match=message):
        call()


def nested(depth: int, operator: ExpressionOperator, leaf: Expression, other: Expression) -> Expression:
    expression = leaf
    for _ in range(depth):
        expression = Operation(operator, (expression, other))
    return expression


def test_counts() -> None:
    check_count("nodes", 5, 5)
    with pytest.raises(GraphError, match="graph: 6 nodes, at most 5 are allowed") as error:
        check_count("nodes", 6, 5)
    assert error.value.metadata == {"found": "6", "limit": "5"}


def test_names() -> None:
    check_name("here", "")
    check_name("here", "x" * MAX_NAME_LENGTH)
    refused(lambda: check_name("here", "x" * (MAX_NAME_LENGTH + 1)), f"here: .* {MAX_NAME_LENGTH + 1} characters long")
    refused(lambda: check_name("here", "a\nb"), "cannot be printed")


def test_labels_are_names_that_cannot_be_code() -> None:
    check_label("here", "model.layers.0/weight:@-_")
    refused(lambda: check_label("here", ""), "here: the name is empty")
    for character in "()'\"`\\;=$":
        refused(lambda character=character: check_label("here", f"a{character}b"), "has the character")  # type: ignore[misc]
    refused(lambda: check_label("here", "a\tb"), "cannot be printed")


def test_errors_show_the_beginning() -> None:
    assert shown("x" * 80) == repr("x" * 80)
    assert shown("x" * 81) == repr("x" * 77 + "...")
    assert len(shown_value(["y" * 10_000] * 10_000)) < 1000
    assert shown_value(4) == "4"
    assert shown_value(10**5000) == "a number of too many digits"


def test_expressions_may_be_as_deep_as_the_bound() -> None:
    deep = nested(MAX_EXPRESSION_DEPTH, ExpressionOperator.MODULO, A, 3)
    check_expression("here", deep, SYMBOLS)
    refused(lambda: check_expression("here", Operation(ExpressionOperator.MODULO, (deep, 3)), SYMBOLS), "64 deep")


def test_expressions_speak_of_known_symbols() -> None:
    check_expression("here", 5, ())
    refused(lambda: check_expression("here", A, ()), "here: speaks of symbol 1")


@pytest.mark.parametrize(
    ("allowed", "refused_one"),
    [
        # A symbol counts 64 bits, and 64 x 64 are the 4096 that are allowed.
        (
            Operation(ExpressionOperator.POWER, (A, 64)),
            Operation(ExpressionOperator.POWER, (nested(1, ExpressionOperator.ADD, A, 1), 64)),
        ),
        (Operation(ExpressionOperator.MULTIPLY, (A,) * 64), Operation(ExpressionOperator.MULTIPLY, (A,) * 65)),
        (
            Operation(ExpressionOperator.MULTIPLY, (A,) * 63 + ((1 << 64) - 1,)),
            Operation(ExpressionOperator.MULTIPLY, (A,) * 63 + (1 << 64,)),
        ),
        ((1 << 4096) - 1, 1 << 4096),
        (Operation(ExpressionOperator.POWER, (A, 0)), Operation(ExpressionOperator.ADD, ((1 << 4096) - 1, 1))),
        (
            Operation(ExpressionOperator.MINIMUM, ((1 << 4095) - 1, 1)),
            Operation(ExpressionOperator.MINIMUM, ((1 << 4096) - 1, 1)),
        ),
    ],
)
def test_values_may_take_4096_bits(allowed: Expression, refused_one: Expression) -> None:
    check_expression("here", allowed, SYMBOLS)
    refused(lambda: check_expression("here", refused_one, SYMBOLS), "bits, at most 4096 are allowed")


@pytest.mark.parametrize("exponent", [-1, 65, A])
def test_exponents_are_small_constants(exponent: Expression) -> None:
    power = Operation(ExpressionOperator.POWER, (A, exponent))
    refused(lambda: check_expression("here", power, SYMBOLS), "an exponent must be a constant from 0 to 64")


@pytest.mark.parametrize("wrap", [lambda item: (item,), lambda item: ArgumentList((item,))])
def test_arguments_may_be_as_deep_as_the_bound(wrap: Callable[[Argument], Argument]) -> None:
    argument: Argument = 1
    for _ in range(MAX_ARGUMENT_DEPTH):
        argument = wrap(argument)
    check_argument_depth("here", argument)
    refused(lambda: check_argument_depth("here", wrap(argument)), "here: an argument is nested more than 16 deep")


def test_leaves_are_counted_and_trees_may_be_as_deep_as_the_bound() -> None:
    leaf, none = TreeLeaf(), TreeNone()
    assert count_leaves("tree", none) == 0
    assert count_leaves("tree", TreeTuple((leaf, none, TreeList((leaf, TreeDict(("a", "b"), (leaf, none))))))) == 3
    assert count_leaves("tree", TreeObject("Thing", ("a",), (leaf,))) == 1
    tree: PyTree = leaf
    for _ in range(MAX_TREE_DEPTH):
        tree = TreeList((tree,))
    assert count_leaves("tree", tree) == 1
    refused(lambda: count_leaves("tree", TreeList((tree,))), "tree: nested more than 64 deep")


@pytest.mark.parametrize("keys", [("a",), ("a", "a"), ("a", "b", "c")])
def test_a_tree_has_a_key_for_each_item(keys: tuple[str, ...]) -> None:
    leaves = (TreeLeaf(), TreeLeaf())
    refused(lambda: count_leaves("tree", TreeDict(keys, leaves)), "different keys for 2 items, needs one each")
    refused(lambda: count_leaves("tree", TreeObject("Thing", keys, leaves)), "different keys for 2 items")
    refused(lambda: count_leaves("tree", TreeDict(("a", "\x00"), leaves)), "cannot be printed")
