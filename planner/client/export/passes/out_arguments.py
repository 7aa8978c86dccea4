"""Turns `div(a, b, out=c)` into `c.copy_(div(a, b))`: the same numbers, of operators that a daemon runs.

Spectral norms write their vectors so while they train. A call that would change the dtype or the shape of `c`, that
draws random numbers or that writes several tensors stays as it is.
"""

from __future__ import annotations

from functools import cache

import torch
from torch import fx

from planner.client.export.effects import draws_random
from planner.client.export.passes.fake_results import fake_result


def copy_to_out_arguments(graph: fx.Graph) -> None:
    for node in list(graph.nodes):
        returning = _without_out(node.target) if isinstance(node.target, torch._ops.OpOverload) else None
        if returning is None or draws_random(node):
            continue
        keywords = dict(node.kwargs)
        out = keywords.pop("out")
        result_value = fake_result(returning, node.args, keywords, like=out)
        if not _fits(result_value, out):
            continue
        with graph.inserting_before(node):
            result = graph.call_function(returning, node.args, keywords)
            copied = graph.call_function(torch.ops.aten.copy_.default, (out, result))
        result.meta = dict(node.meta) | {"val": result_value}
        copied.meta = dict(node.meta)
        node.replace_all_uses_with(copied)
        graph.erase_node(node)


def _fits(result: object, out: fx.Node) -> bool:
    held = out.meta["val"]
    return isinstance(result, torch.Tensor) and result.dtype == held.dtype and list(result.shape) == list(held.shape)


@cache
def _without_out(overload: torch._ops.OpOverload) -> torch._ops.OpOverload | None:
    """The overload with the same arguments but `out`; None where there is none, or no one tensor called `out`."""
    *others, last = overload._schema.arguments or (None,)
    if last is None or last.name != "out" or not last.is_out or str(last.type) != "Tensor":
        return None
    packet = getattr(getattr(torch.ops, overload.namespace), overload._schema.name.rpartition("::")[2])
    wanted = [(argument.name, str(argument.type)) for argument in others]
    for name in packet.overloads():
        candidate: torch._ops.OpOverload = getattr(packet, name)
        if [(argument.name, str(argument.type)) for argument in candidate._schema.arguments] == wanted:
            return candidate
    return None
