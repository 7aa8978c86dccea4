"""Copies the body of a higher-order operator's call into the graph that calls it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import fx


def inline_body(
    module: fx.GraphModule,
    body: fx.GraphModule,
    operands: Sequence[Any],
    on_copy: Callable[[fx.Node, fx.Node], None] = lambda copy, node: None,
) -> Any:
    """What the body returns, as nodes of the module's graph, made where that inserts. `on_copy`: (copy, original)."""
    remaining = iter(operands)
    copies: dict[fx.Node, Any] = {}
    for node in body.graph.nodes:
        if node.op == "placeholder":
            copies[node] = next(remaining)
        elif node.op == "get_attr":
            copies[node] = _adopt(module, body, node)
        elif node.op == "output":
            return fx.map_arg(node.args[0], copies.__getitem__)
        else:
            copies[node] = module.graph.node_copy(node, copies.__getitem__)
            on_copy(copies[node], node)
    raise AssertionError(f"{body}: a graph without an output")


def replace_call(call: fx.Node, results: Any) -> None:
    """Who reads the call's results, as a whole or by index, reads these."""
    if isinstance(results, fx.Node):
        call.replace_all_uses_with(results)
    for user in list(call.users):
        assert user.op == "call_function", f"{user} reads a call's results other than by index"
        user.replace_all_uses_with(results[user.args[1]])
        user.graph.erase_node(user)
    call.graph.erase_node(call)


def drop_unread_bodies(graph: fx.Graph) -> None:
    """What is fetched and not used any more."""
    for node in list(graph.nodes):
        if node.op == "get_attr" and not node.users:
            graph.erase_node(node)


def _adopt(module: fx.GraphModule, body: fx.GraphModule, node: fx.Node) -> fx.Node:
    name = str(node.target)
    fresh = f"{name}_in_{module.graph._graph_namespace.create_name('region', None)}"
    setattr(module, fresh, getattr(body, name))
    return module.graph.create_node("get_attr", fresh)
