"""Removes what only asserts: a daemon checks shapes against the declared ones instead."""

from __future__ import annotations

import torch
from torch import fx

_ASSERTIONS = frozenset(
    {
        "aten::_assert_tensor_metadata",
        "aten::_assert_async",
        "aten::_assert_scalar",
        "aten::sym_constrain_range",
        "aten::sym_constrain_range_for_size",
    }
)


def drop_assertions(graph: fx.Graph) -> None:
    for node in list(graph.nodes):
        if (
            isinstance(node.target, torch._ops.OpOverload)
            and node.target._schema.name in _ASSERTIONS
            and not node.users
        ):
            graph.erase_node(node)
