"""Inlines the bodies of grad-mode and autocast regions, and leaves on each node the regions that it stood in."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from planner.client.export.passes.inline_body import drop_unread_bodies, inline_body, replace_call
from planner.client.export.regions import Region, autocast_region, grad_region, regions_of, set_regions


def flatten_regions(module: fx.GraphModule) -> None:
    """After it, no wrap_with_set_grad_enabled or wrap_with_autocast is left, at any depth."""
    for node in list(module.graph.nodes):
        wrapper = _wrapper(node)
        if wrapper is not None:
            region, body_node, operands = wrapper
            _inline(module, node, region, body_node, operands)
    drop_unread_bodies(module.graph)


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
    with module.graph.inserting_before(call):
        results = inline_body(module, body, operands, lambda copy, node: set_regions(copy, (region, *regions_of(node))))
    replace_call(call, results)
