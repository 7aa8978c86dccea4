"""Bytes of an fx graph's nodes as torch.fx counts them: outputs, and a called module's parameters at their dtype.

Unlike there, a node may make several tensors, nested in any way, or none.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import fx, nn
from torch.fx import Node
from torch.fx.passes.shape_prop import ShapeProp, TensorMetadata

from planner.fx_compat.partitioning.errors import NothingToPartition


class NodeBytes(NamedTuple):
    output_size: int
    total_size: int


def get_size_of_all_nodes(fx_module: fx.GraphModule, args: list[torch.Tensor] | None = None) -> None:
    """Sets `size_bytes` of every node before the output. With example `args`, shapes are found first."""
    if args is not None:
        ShapeProp(fx_module).propagate(*args)
    nodes = nodes_before_output(fx_module.graph)
    for node, size in sizes_of_nodes(fx_module, nodes).items():
        node.size_bytes = size


def nodes_before_output(graph: fx.Graph) -> tuple[Node, ...]:
    nodes = []
    for node in graph.nodes:
        if node.op == "output":
            break
        nodes.append(node)
    return tuple(nodes)


def sizes_of_nodes(fx_module: fx.GraphModule | None, nodes: Iterable[Node]) -> Mapping[Node, NodeBytes]:
    """From the shapes in `meta`; else what a node's `size_bytes` says. Raises NothingToPartition without either."""
    elements: dict[str, int] = {}
    return {node: _size(fx_module, node, elements) for node in nodes}


def size_of_node(node: Node) -> NodeBytes:
    """As set on the node, else from its shape."""
    own_size = getattr(node, "size_bytes", None)
    if own_size is not None:
        return NodeBytes(*own_size)
    return _size(node.graph.owning_module, node, {})


def _size(fx_module: fx.GraphModule | None, node: Node, elements: dict[str, int]) -> NodeBytes:
    result = node.meta.get("tensor_meta")
    if result is None:
        result = node.meta.get("val")
    if result is None and "type" not in node.meta:
        own_size = getattr(node, "size_bytes", None)
        if own_size is None:
            raise NothingToPartition(
                f"node {node.name!r} has no shape; run get_size_of_all_nodes(module, example_inputs) first",
                node=node.name,
            )
        return NodeBytes(*own_size)
    tensors = list(_tensors_in(result))
    output = sum(count * width for count, width in tensors)
    if node.op != "call_module" or fx_module is None:
        return NodeBytes(output, output)
    target = str(node.target)
    if target not in elements:
        elements[target] = _parameter_elements(fx_module, target, node)
    width = max((width for _, width in tensors), default=4)
    return NodeBytes(output, output + width * elements[target])


def _tensors_in(result: Any) -> Iterator[tuple[int, int]]:
    """(elements, bytes of each) of every tensor in what a node's meta says of its result."""
    if isinstance(result, TensorMetadata):
        yield result.shape.numel(), _element_bytes(result.dtype)
    elif isinstance(result, torch.Tensor):
        yield result.numel(), result.element_size()
    elif isinstance(result, dict):
        for item in result.values():
            yield from _tensors_in(item)
    elif isinstance(result, (tuple, list)):
        for item in result:
            yield from _tensors_in(item)


def _element_bytes(dtype: torch.dtype) -> int:
    return dtype.itemsize


def _parameter_elements(fx_module: fx.GraphModule, target: str, node: Node) -> int:
    module: object = fx_module
    for name in target.split("."):
        module = getattr(module, name, None)
    if not isinstance(module, nn.Module):
        raise NothingToPartition(f"node {node.name!r} calls module {target!r}, which is not there", node=node.name)
    return sum(parameter.numel() for parameter in module.parameters())
