"""Which outputs of a program may be memory of a state, which the next run writes while they are still on their way."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Set

import torch
from torch import fx

from stage_daemon.loader.vocabulary import facts_of


def returned_states(program: fx.GraphModule, attributes: Set[str]) -> tuple[int, ...]:
    """Positions of the outputs that may be one of the states at those attributes, or a view of one."""
    [output] = [node for node in program.graph.nodes if node.op == "output"]
    may_be: dict[fx.Node, bool] = {}
    for node in program.graph.nodes:
        is_state = node.op == "get_attr" and node.target in attributes
        may_be[node] = is_state or any(may_be[source] for source in _shared(node))
    return tuple(
        position for position, given in enumerate(output.args[0]) if isinstance(given, fx.Node) and may_be[given]
    )


def _shared(node: fx.Node) -> Iterable[fx.Node]:
    """Arguments whose memory may be the node's own."""
    if node.op != "call_function":
        return ()
    if node.target is operator.getitem:
        return node.all_input_nodes[:1]
    # A branch may give what it was given.
    if not isinstance(node.target, torch._ops.OpOverload) or facts_of(node.target._schema.name).returns_argument:
        return node.all_input_nodes
    names = [argument.name for argument in node.target._schema.arguments if argument.alias_info is not None]
    given = dict(zip((argument.name for argument in node.target._schema.arguments), node.args, strict=False))
    given |= node.kwargs
    shared: list[fx.Node] = []
    fx.map_arg([given[name] for name in names if name in given], shared.append)
    return shared
