"""Inlines the bodies of grad-mode and autocast regions, and leaves on each node the regions that it stood in."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from planner.client.export.passes.inline_body import drop_unread_bodies, inline_body, replace_call
from planner.client.export.regions import Region, autocast_region, grad_region, regions_of, set_regions
from planner.client.export.storage import StorageRoots


def flatten_regions(module: fx.GraphModule) -> None:
    """After it, no wrap_with_set_grad_enabled or wrap_with_autocast is left, at any depth."""
    for node in list(module.graph.nodes):
        wrapper = region_around(node)
        if wrapper is not None:
            region, body_node, operands = wrapper
            _inline(module, node, region, body_node, operands)
    drop_unread_bodies(module.graph)


def region_around(node: fx.Node) -> tuple[Region, Any, tuple[Any, ...]] | None:
    """Of a call that runs a body in a region: the region, the node of the body, and what the body is given."""
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


def written_inputs(module: fx.GraphModule) -> frozenset[fx.Node]:
    """Those of a captured program that it writes in place, in regions too, which are not flat yet."""
    roots, written = StorageRoots(), set[fx.Node]()
    for node in module.graph.nodes:
        roots.add(node)
        written |= roots.written_by(node)
        region = region_around(node)
        if region is not None:
            _, body_node, operands = region
            body = module.get_submodule(str(body_node.target))
            assert isinstance(body, fx.GraphModule)
            given = dict(zip(body.graph.find_nodes(op="placeholder"), operands, strict=True))
            for inner in written_inputs(body):
                written |= roots.of(given[inner])
    return frozenset(node for node in written if node.op == "placeholder")
