"""The subgraphs that a node speaks of, and which of them a forward pass runs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from planner.graph.ir import Argument, ArgumentList, Node, OperatorKind, SubgraphReference

# Its arguments: the programs of its passes, forward and backward; the operands of the first; which of them the second
# reads, and which it gives a gradient for; and for each result whether a gradient comes back.
CUSTOM_FUNCTION = "custom_function"


def subgraphs_read(node: Node) -> Iterator[int]:
    """Indexes in the graph, in order, once for each time that the node speaks of one."""
    yield from _in(node.arguments)
    yield from _in(argument for _, argument in node.keyword_arguments)


def subgraphs_run(node: Node) -> tuple[int, ...]:
    """Of these the ones of which a forward pass runs one: the branches of a condition, a custom function's forward."""
    if node.operator.kind is not OperatorKind.HIGHER_ORDER:
        return ()
    indexes = tuple(subgraphs_read(node))
    return indexes[:1] if node.operator.name == CUSTOM_FUNCTION else indexes


def _in(arguments: Iterable[Argument]) -> Iterator[int]:
    for argument in arguments:
        if isinstance(argument, SubgraphReference):
            yield argument.subgraph_index
        elif isinstance(argument, ArgumentList):
            yield from _in(argument.items)
        elif isinstance(argument, tuple):
            yield from _in(argument)
