"""Writes out scans and maps over a fixed length, step by step: a daemon runs no loops, and a plan may then cut between
steps. A map is a scan that carries nothing on.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from planner.client.export.passes.fake_results import call_beside
from planner.client.export.passes.inline_body import drop_unread_bodies, inline_body, replace_call

# Of one scan when written out; a longer one is refused with the other operators that are not carried.
MAX_NODES = 20_000


def unroll_scans(module: fx.GraphModule) -> None:
    """After it none is left but over a length that may change, or one too long. Bodies are done already."""
    for node in list(module.graph.nodes):
        if node.target is torch.ops.higher_order.scan:
            body, carried, scanned, more = node.args
            _unroll(module, node, body, carried, scanned, more)
        elif node.target is torch.ops.higher_order.map_impl:
            body, scanned, more = node.args
            _unroll(module, node, body, (), scanned, more)
    drop_unread_bodies(module.graph)


def _unroll(module: fx.GraphModule, call: fx.Node, body_node: Any, carried: Any, scanned: Any, more: Any) -> None:
    body = module.get_submodule(str(body_node.target))
    assert isinstance(body, fx.GraphModule)
    length = scanned[0].meta["val"].shape[0] if scanned else 0
    if not isinstance(length, int) or not 0 < length * len(body.graph.nodes) <= MAX_NODES:
        return
    carries, rows_of_steps = list(carried), []
    with module.graph.inserting_before(call):
        for step in range(length):
            items = [call_beside(call, torch.ops.aten.select.int, sequence, 0, step) for sequence in scanned]
            results = inline_body(module, body, [*carries, *items, *more])
            carries, rows = list(results[: len(carries)]), results[len(carries) :]
            rows_of_steps.append(rows)
        stacked = [
            call_beside(call, torch.ops.aten.stack.default, list(rows)) for rows in zip(*rows_of_steps, strict=True)
        ]
    replace_call(call, (*carries, *stacked))
