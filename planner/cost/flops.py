"""Floating point operations of one call, from its arguments' shapes: a multiply and an add count as two.

The conventions are those of torch.utils.flop_counter, which the tests compare with: products of matrices, convolutions
and attention count; everything else is bound by memory and counts 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import zip_longest

from planner.cost.shapes import Shape
from planner.graph.ir import Argument, ArgumentList, Node, OperatorKind, ValueReference, values_in
from planner.graph.operators import facts_of

Shapes = Mapping[int, Shape]
Formula = Callable[[Node, Shapes], int]


def node_flops(node: Node, shapes: Shapes) -> int:
    """0 for an operator without a formula, or for a call whose shapes do not fit its formula."""
    if node.operator.kind is not OperatorKind.ATEN:
        return 0
    name = facts_of(node.operator.name).flops
    if not name:
        return 0
    formula = FORMULAS[name]
    try:
        return formula(node, shapes)
    except (IndexError, KeyError, ValueError):
        return 0


def _argument(node: Node, position: int) -> Argument:
    return node.arguments[position]


def _dims(node: Node, position: int, shapes: Shapes) -> tuple[int, ...]:
    argument = _argument(node, position)
    if not isinstance(argument, ValueReference):
        raise ValueError(f"argument {position} is no tensor")
    return shapes[argument.value_id].dims


def _output_dims(node: Node, shapes: Shapes) -> tuple[int, ...]:
    used = [output for output in node.outputs if output]
    if not used:
        raise ValueError("nobody reads its result, so that its shape is not known")
    return shapes[used[0]].dims


def _product_at(left: int, right: int) -> Formula:
    """[..., m, k] x [..., k, n], batched, broadcast, or with a vector on either side."""

    def formula(node: Node, shapes: Shapes) -> int:
        first, second = _dims(node, left, shapes), _dims(node, right, shapes)
        rows = first[-2] if len(first) > 1 else 1
        columns = second[-1] if len(second) > 1 else 1
        return 2 * math.prod(_broadcast(first[:-2], second[:-2])) * rows * columns * first[-1]

    return formula


def _broadcast(first: Sequence[int], second: Sequence[int]) -> list[int]:
    longest = zip_longest(reversed(first), reversed(second), fillvalue=1)
    return [max(one, other) if min(one, other) else 0 for one, other in longest]


def _grouped_product(node: Node, shapes: Shapes) -> int:
    """Each row or column of a side that is cut in groups meets one group of the other; two batches have no groups."""
    first, second = _dims(node, 0, shapes), _dims(node, 1, shapes)
    batch = first[0] if len(first) == len(second) == 3 else 1
    return 2 * batch * first[-2] * first[-1] * second[-1]


def _linear(node: Node, shapes: Shapes) -> int:
    weight = _dims(node, 1, shapes)
    return 2 * math.prod(_dims(node, 0, shapes)[:-1]) * math.prod(weight)


def _packed_linear(node: Node, shapes: Shapes) -> int:
    """A weight whose packed dims are the device's own business: its columns are the result's."""
    return 2 * math.prod(_output_dims(node, shapes)) * _dims(node, 0, shapes)[-1]


def _convolution(node: Node, shapes: Shapes) -> int:
    """weight is [out, in / groups, *kernel]: one filter application per output position."""
    weight, output = _dims(node, 1, shapes), _output_dims(node, shapes)
    spatial = len(weight) - 2
    batch = output[0] if len(output) > spatial + 1 else 1
    return 2 * batch * math.prod(output[-spatial:]) * math.prod(weight)


def _transposed_convolution(node: Node, shapes: Shapes) -> int:
    """weight is [in, out / groups, *kernel]: one filter application per input position."""
    source, weight = _dims(node, 0, shapes), _dims(node, 1, shapes)
    spatial = len(weight) - 2
    batch = source[0] if len(source) > spatial + 1 else 1
    return 2 * batch * math.prod(source[-spatial:]) * math.prod(weight)


def _any_convolution(node: Node, shapes: Shapes) -> int:
    """aten::convolution(input, weight, bias, stride, padding, dilation, transposed, ...)."""
    return _transposed_convolution(node, shapes) if _argument(node, 6) is True else _convolution(node, shapes)


def _attention(node: Node, shapes: Shapes) -> int:
    """Scores and their product with the values, for every query head (grouped keys are read again)."""
    query, key, value = (_dims(node, position, shapes) for position in range(3))
    return 2 * math.prod(query[:-1]) * key[-2] * (query[-1] + value[-1])


def _einsum(node: Node, shapes: Shapes) -> int:
    """Contracted pairwise from the left, as torch does without a path: every index of a pair once, where one is summed.

    An index that no later operand and no output has is summed as soon as its pair is.
    """
    equation = _argument(node, 0)
    operands = [shapes[value_id].dims for value_id in values_in(_argument(node, 1))]
    if not isinstance(equation, str) or len(operands) < 2:
        return 0
    operand_terms, _, output_term = equation.replace(" ", "").partition("->")
    sizes: list[dict[str, int]] = []
    for term, dims in zip(operand_terms.split(","), operands, strict=True):
        sizes.append({})
        _add_sizes(term, dims, sizes[-1])
    output_names = _kept(operand_terms, output_term if "->" in equation else None, sizes)
    flops, left = 0, sizes[0]
    for position, right in enumerate(sizes[1:], start=1):
        pair = {name: max(left.get(name, 1), right.get(name, 1)) for name in (*left, *right)}
        later = output_names.union(*sizes[position + 1 :])
        flops += 2 * math.prod(pair.values()) if pair.keys() - later else 0
        left = {name: size for name, size in pair.items() if name in later}
    return flops


def _kept(operand_terms: str, output_term: str | None, sizes: Sequence[Mapping[str, int]]) -> frozenset[str]:
    """Indices of the output: those named, or without an arrow those that stand once; an ellipsis always."""
    letters = operand_terms.replace(",", "").replace(".", "")
    named = (
        set(output_term.replace(".", ""))
        if output_term is not None
        else {one for one in letters if letters.count(one) == 1}
    )
    return frozenset(named.union(*({name for name in operand if name.startswith("...")} for operand in sizes)))


def _tensordot(node: Node, shapes: Shapes) -> int:
    """tensordot(self, other, dims_self, dims_other)"""
    first, second = _dims(node, 0, shapes), _dims(node, 1, shapes)
    summed = _argument(node, 2)
    if not isinstance(summed, ArgumentList):
        return 0
    shared = math.prod(first[dim] for dim in summed.items if isinstance(dim, int))
    return 2 * math.prod(first) * math.prod(second) // max(1, shared)


def _add_sizes(term: str, dims: Sequence[int], sizes: dict[str, int]) -> None:
    head, _, tail = term.partition("...")
    named = [*zip(head, dims, strict=False), *zip(reversed(tail), reversed(dims), strict=False)]
    ellipsis = dims[len(head) : len(dims) - len(tail)] if "..." in term else ()
    for letter, dim in [*named, *((f"...{at}", dim) for at, dim in enumerate(reversed(ellipsis)))]:
        sizes[letter] = max(dim, sizes.get(letter, 1))


def _recurrent(node: Node, shapes: Shapes) -> int:
    """lstm, gru, rnn on a padded batch or a packed one: every weight matrix meets every element of every step.

    The weights are the last list of tensors: the states of an lstm are one too.
    """
    steps = math.prod(_dims(node, 0, shapes)[:-1])
    lists = [argument for argument in node.arguments[2:] if isinstance(argument, ArgumentList)]
    matrices = [shapes[value_id].dims for value_id in values_in(lists[-1])]
    return 2 * steps * sum(math.prod(dims) for dims in matrices if len(dims) == 2)


# By the fact `flops` of operators.txt.
FORMULAS: Mapping[str, Formula] = {
    "product": _product_at(0, 1),
    "added_product": _product_at(1, 2),
    "grouped_product": _grouped_product,
    "linear": _linear,
    "packed_linear": _packed_linear,
    "convolution": _convolution,
    "transposed_convolution": _transposed_convolution,
    "any_convolution": _any_convolution,
    "attention": _attention,
    "einsum": _einsum,
    "tensordot": _tensordot,
    "recurrent": _recurrent,
}
