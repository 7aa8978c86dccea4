"""Inlines the bodies of grad-mode and autocast regions, and leaves on each node the regions that it stood in."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from planner.client.export.regions import Region, autocast_region, grad_region, regions_of, set_regions


def flatten_regions(module: fx.GraphModule) -> None:
    """After it, no wrap_with_set_grad_enabled or wrap_with_autocast is left, at any depth."""
    for node in list(module.graph.nodes):
        wrapper = _wrapper(node)
        if wrapper is not None:
            region, body_node, operands = wrapper
            _inline(module, node, region, body_node, operands)
    for node in list(module.graph.nodes):
        if node.op == "get_attr" and not node.users:
            module.graph.erase_node(node)


def _wrapper(node: fx.Node) -> tuple[Region, Any, tuple[Any, ...]] | None:
    if node.target is torch.ops.higher_order.wrap_with_set_grad_enabled:
        enabled, body, *operands = node.args
        return grad_region(bool(enabled)), body, tuple(operands)
    if node.target is torch.ops.higher_order.wrap_with_autocast:
        settings: Any = node.args[:4]
        body, *operands = node.args[4:]
        return autocast_region(*settings), body, tuple(operands)
    return None


def _inline(module: fx.GraphModule, call: fx.Node, region: Region, body_node: fx.Node, operands: Any) -> None:
    body = module.get_submodule(str(body_node.target))
    assert isinstance(body, fx.GraphModule)
    flatten_regions(body)
    given = iter(operands)
    copies: dict[fx.Node, Any] = {}
    with module.graph.inserting_before(call):
        for node in body.graph.nodes:
            if node.op == "placeholder":
                copies[node] = next(given)
            elif node.op == "get_attr":
                copies[node] = _adopt(module, body, node)
            elif node.op == "output":
                _replace(call, fx.map_arg(node.args[0], copies.__getitem__))
            else:
                copies[node] = module.graph.node_copy(node, copies.__getitem__)
                set_regions(copies[node], (region, *regions_of(node)))


def _adopt(module: fx.GraphModule, body: fx.GraphModule, node: fx.Node) -> fx.Node:
    name = str(node.target)
    fresh = f"{name}_in_{module.graph._graph_namespace.create_name('region', None)}"
    setattr(module, fresh, getattr(body, name))
    return module.graph.create_node("get_attr", fresh)


def _replace(call: fx.Node, results: Any) -> None:
    if isinstance(results, fx.Node):
        call.replace_all_uses_with(results)
    for user in list(call.users):
        assert user.op == "call_function", f"{user} reads a region's results other than by index"
        user.replace_all_uses_with(results[user.args[1]])
        user.graph.erase_node(user)
    call.graph.erase_node(call)
