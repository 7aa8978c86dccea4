"""What a captured call does besides returning: which arguments it writes, which its results share storage with."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import fx

from planner.graph.operators import facts_of

# Of a fact `statistics`: the positions of what is written, and of the flag that has them written.
_STATISTICS, _TRAINING = (3, 4), 5


def argument_at(node: fx.Node, position: int) -> Any:
    """A call's argument by its position in the schema, however it was passed; its default if it was not."""
    if position < len(node.args):
        return node.args[position]
    argument = node.target._schema.arguments[position]  # type: ignore[union-attr]
    return node.kwargs.get(argument.name, argument.default_value)


def mutated_positions(node: fx.Node) -> tuple[int, ...]:
    """Positions, in schema order, of the arguments that this call writes in place."""
    if not isinstance(node.target, torch._ops.OpOverload):
        return ()
    declared, _ = _declared(node.target)
    if facts_of(node.target._schema.name).statistics and argument_at(node, _TRAINING):
        return (*declared, *(at for at in _STATISTICS if isinstance(argument_at(node, at), fx.Node)))
    return declared


def aliased_positions(node: fx.Node) -> tuple[int, ...]:
    """Positions, in schema order, of the arguments that a result of this call may share storage with."""
    if not isinstance(node.target, torch._ops.OpOverload):
        return ()
    _, declared = _declared(node.target)
    facts = facts_of(node.target._schema.name)
    undeclared = (*facts.returned_positions, 0) if facts.dropout else facts.returned_positions
    return tuple(sorted({*declared, *undeclared}))


def draws_random(node: fx.Node) -> bool:
    return isinstance(node.target, torch._ops.OpOverload) and torch.Tag.nondeterministic_seeded in node.target.tags


@cache
def _declared(overload: torch._ops.OpOverload) -> tuple[tuple[int, ...], tuple[int, ...]]:
    schema = overload._schema
    returned: set[str] = set()
    for result in schema.returns:
        if result.alias_info is not None:
            returned |= result.alias_info.before_set | result.alias_info.after_set
    mutated, aliased = [], []
    for position, argument in enumerate(schema.arguments):
        info = argument.alias_info
        if info is None:
            continue
        if info.is_write:
            mutated.append(position)
        # "(a -> *)": the elements of the list that is returned are views of it.
        if "*" in info.after_set or (info.before_set | info.after_set) & returned:
            aliased.append(position)
    return tuple(mutated), tuple(aliased)
