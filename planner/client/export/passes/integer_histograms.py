"""Counts integers as float32, as a CPU does too, which has no histogram of integers. Exact up to 2^24 of a kind."""

from __future__ import annotations

import torch
from torch import fx

from planner.client.export.effects import argument_at
from planner.client.export.passes.fake_results import call_beside

_EXACT_BINS = 1 << 24


def integer_histograms(graph: fx.Graph) -> None:
    for node in list(graph.nodes):
        if node.target is not torch.ops.aten.histc.default:
            continue
        counted = argument_at(node, 0)
        dtype = counted.meta["val"].dtype
        if dtype.is_floating_point or argument_at(node, 1) > _EXACT_BINS:
            continue
        with graph.inserting_before(node):
            as_float = call_beside(node, torch.ops.aten.to.dtype, counted, torch.float32)
        node.replace_input_with(counted, as_float)
        node.meta["val"] = node.meta["val"].to(torch.float32)
        with graph.inserting_after(node):
            as_integer = call_beside(node, torch.ops.aten.to.dtype, node, dtype)
        node.replace_all_uses_with(as_integer, delete_user_cb=lambda user, cast=as_integer: user is not cast)
