"""A call with other value ids."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from planner.graph.ir import Argument, ArgumentList, Node, ValueReference


def renamed(node: Node, names: Mapping[int, int], outputs: Sequence[int] | None = None) -> Node:
    """What it reads by `names`, ids that are not among them as they are; with `outputs`, if given."""
    return replace(
        node,
        arguments=tuple(_renamed(argument, names) for argument in node.arguments),
        keyword_arguments=tuple((key, _renamed(argument, names)) for key, argument in node.keyword_arguments),
        outputs=node.outputs if outputs is None else tuple(outputs),
    )


def _renamed(argument: Argument, names: Mapping[int, int]) -> Argument:
    if isinstance(argument, ValueReference):
        return ValueReference(names.get(argument.value_id, argument.value_id))
    if isinstance(argument, ArgumentList):
        return ArgumentList(tuple(_renamed(item, names) for item in argument.items))
    if isinstance(argument, tuple):
        return tuple(_renamed(item, names) for item in argument)
    return argument
