"""Removes calls whose result nobody reads, unless they write in place or draw random numbers."""

from __future__ import annotations

import torch
from torch import fx

from planner.client.export.effects import draws_random, mutated_positions


def drop_dead(graph: fx.Graph) -> None:
    for node in reversed(list(graph.nodes)):
        if node.op in ("call_function", "get_attr") and not node.users and not _has_effect(node):
            graph.erase_node(node)


def _has_effect(node: fx.Node) -> bool:
    if isinstance(node.target, torch._ops.HigherOrderOperator):
        return True
    return bool(mutated_positions(node)) or draws_random(node)
