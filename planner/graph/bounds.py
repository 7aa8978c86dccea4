"""How large and how deep a graph may be. Each check names the element that breaks its bound."""

from __future__ import annotations

import reprlib
from collections.abc import Container

from planner.errors import GraphError
from planner.graph.expression import MAX_EXPONENT, Expression, ExpressionOperator, Operation, SymbolReference
from planner.graph.ir import Argument, ArgumentList, PyTree, TreeLeaf, TreeNone

MAX_NODES = 250_000
MAX_VALUES = 2_000_000
MAX_STATES = 250_000
MAX_SYMBOLS = 100_000
MAX_INPUTS = 100_000
MAX_TOTAL_SUBGRAPHS = 10_000
MAX_SUBGRAPH_DEPTH = 16
MAX_EXPRESSION_DEPTH = 64
MAX_TREE_DEPTH = 64
MAX_ARGUMENT_DEPTH = 16
MAX_RANK = 64
MAX_DIM = 2**40
MAX_TENSOR_BYTES = 2**50
MAX_NAME_LENGTH = 4096
MAX_ARGUMENT_POSITION = 256

# Bits that evaluating an expression may take, whatever its symbols stand for: powers of powers would fill the memory.
MAX_EXPRESSION_BITS = 4096
_SYMBOL_BITS = 64

# A label is never code, and one that looks like code is no label of an honest exporter.
_REFUSED_CHARACTERS = frozenset("()'\"`\\;=$")


def shown(text: str) -> str:
    """The text as an error message may carry it."""
    return repr(text if len(text) <= 80 else text[:77] + "...")


_BRIEF = reprlib.Repr()
_BRIEF.maxlevel, _BRIEF.maxlist, _BRIEF.maxdict = 3, 4, 4
_BRIEF.maxstring = _BRIEF.maxother = 80


def shown_value(value: object) -> str:
    """Anything that a document may hold, as an error message may carry it: short, whatever its size."""
    try:
        return _BRIEF.repr(value)
    except ValueError:
        return "a number of too many digits"


def check_count(what: str, count: int, most: int) -> None:
    if count > most:
        raise GraphError(f"graph: {count} {what}, at most {most} are allowed", found=count, limit=most)


def check_name(where: str, name: str) -> None:
    """A name for display: printable and not too long."""
    if len(name) > MAX_NAME_LENGTH:
        raise GraphError(f"{where}: the name {shown(name)} is {len(name)} characters long, at most {MAX_NAME_LENGTH}")
    if not name.isprintable():
        raise GraphError(f"{where}: the name {shown(name)} has characters that cannot be printed")


def check_label(where: str, name: str) -> None:
    """A name that is also a key (of a weight, of a batch): not empty, and without characters that code is made of."""
    check_name(where, name)
    if not name:
        raise GraphError(f"{where}: the name is empty")
    refused = _REFUSED_CHARACTERS.intersection(name)
    if refused:
        raise GraphError(
            f"{where}: the name {shown(name)} has the character {min(refused)!r}; "
            "use letters, digits and . _ - / : @ and the like"
        )


def check_expression(where: str, expression: Expression, symbol_ids: Container[int]) -> None:
    """Depth, operands and symbols are sound, and evaluating it stays cheap for any values of its symbols."""
    bits = _bits(where, expression, symbol_ids, MAX_EXPRESSION_DEPTH)
    if bits > MAX_EXPRESSION_BITS:
        raise GraphError(f"{where}: the expression may take {bits} bits, at most {MAX_EXPRESSION_BITS} are allowed")


def _bits(where: str, expression: Expression, symbol_ids: Container[int], depth_left: int) -> int:
    if isinstance(expression, int):
        return max(1, expression.bit_length())
    if isinstance(expression, SymbolReference):
        if expression.symbol_id not in symbol_ids:
            raise GraphError(f"{where}: speaks of symbol {expression.symbol_id}, which the graph does not have")
        return _SYMBOL_BITS
    if depth_left <= 0:
        raise GraphError(f"{where}: the expression is nested more than {MAX_EXPRESSION_DEPTH} deep")
    operands = [_bits(where, operand, symbol_ids, depth_left - 1) for operand in expression.operands]
    return _operation_bits(where, expression, operands)


def _operation_bits(where: str, operation: Operation, operand_bits: list[int]) -> int:
    if operation.operator is ExpressionOperator.POWER:
        exponent = operation.operands[1]
        if not isinstance(exponent, int) or not 0 <= exponent <= MAX_EXPONENT:
            raise GraphError(f"{where}: an exponent must be a constant from 0 to {MAX_EXPONENT}")
        return operand_bits[0] * max(1, exponent)
    if operation.operator is ExpressionOperator.MULTIPLY:
        return sum(operand_bits)
    if operation.operator is ExpressionOperator.ADD:
        return max(operand_bits) + len(operand_bits).bit_length()
    return max(operand_bits) + 1


def check_argument_depth(where: str, argument: Argument, depth_left: int = MAX_ARGUMENT_DEPTH) -> None:
    items = argument.items if isinstance(argument, ArgumentList) else argument
    if not isinstance(items, tuple):
        return
    if depth_left <= 0:
        raise GraphError(f"{where}: an argument is nested more than {MAX_ARGUMENT_DEPTH} deep")
    for item in items:
        check_argument_depth(where, item, depth_left - 1)


def count_leaves(where: str, tree: PyTree, depth_left: int = MAX_TREE_DEPTH) -> int:
    """Leaves of a tree that is sound: not too deep, and with a key for each item where it has keys."""
    if isinstance(tree, TreeLeaf):
        return 1
    if isinstance(tree, TreeNone):
        return 0
    if depth_left <= 0:
        raise GraphError(f"{where}: nested more than {MAX_TREE_DEPTH} deep")
    keys = getattr(tree, "keys", None)
    if keys is not None:
        _check_keys(where, keys, len(tree.items))
    return sum(count_leaves(where, item, depth_left - 1) for item in tree.items)


def _check_keys(where: str, keys: tuple[str, ...], num_items: int) -> None:
    for key in keys:
        check_name(where, key)
    if len(keys) != num_items or len(set(keys)) != len(keys):
        raise GraphError(f"{where}: {len(set(keys))} different keys for {num_items} items, needs one each")
