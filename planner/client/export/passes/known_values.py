"""Small values that a program computes from constants alone: what they will be when it runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import fx
from torch.fx.node import map_aggregate

from planner.client.export.effects import draws_random, mutated_positions
from planner.client.export.storage import StorageRoots

# A counter, a bound, a few flags: what decides how often a loop runs is small, and tables are not worth computing.
MAX_ELEMENTS = 64


def known_values(graph: fx.Graph, values: Mapping[fx.Node, Any]) -> dict[fx.Node, Any]:
    """By node, on the CPU, whatever the module is on: it may be on meta, and its counters count nevertheless.

    `values` are those of some placeholders. What is written in place anywhere is not known.
    """
    written = _written(graph)
    known = {node: value for node, value in values.items() if node not in written}
    for node in graph.nodes:
        if node not in written and _is_computed(node) and all(source in known for source in node.all_input_nodes):
            args, kwargs = map_aggregate((node.args, node.kwargs), lambda one: _operand(one, known))
            known[node] = node.target(*args, **kwargs)
    return known


def _operand(argument: Any, known: Mapping[fx.Node, Any]) -> Any:
    if isinstance(argument, fx.Node):
        return known[argument]
    return torch.device("cpu") if isinstance(argument, torch.device) else argument


def _is_computed(node: fx.Node) -> bool:
    """By a function of its arguments alone, into something small."""
    if node.op != "call_function" or _written_positions(node) or draws_random(node):
        return False
    plain = isinstance(node.target, torch._ops.OpOverload) or getattr(node.target, "__module__", "") == "_operator"
    return plain and _is_small(node.meta.get("val"))


def _is_small(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return all(_is_small(item) for item in value)
    if not isinstance(value, torch.Tensor):
        return True
    return all(isinstance(size, int) for size in value.shape) and value.numel() <= MAX_ELEMENTS


def _written_positions(node: fx.Node) -> tuple[int, ...]:
    """detach_, which stands behind each torch.tensor(0), writes no element."""
    return () if node.target is torch.ops.aten.detach_.default else mutated_positions(node)


def _written(graph: fx.Graph) -> frozenset[fx.Node]:
    roots = StorageRoots()
    changed: set[fx.Node] = set()
    for node in graph.nodes:
        roots.add(node)
        for position in _written_positions(node):
            argument = node.args[position] if position < len(node.args) else None
            if isinstance(argument, fx.Node):
                changed.update(roots.of(argument))
    return frozenset(roots.sharing(frozenset(changed)))
