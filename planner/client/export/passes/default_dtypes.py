"""What a forward leaves to torch's default dtype is named: whoever exports may have set another, daemons have not."""

from __future__ import annotations

import torch
from torch import fx

from planner.client.export.dtypes import has_fractions
from planner.client.export.module_paths import module_path
from planner.client.export.passes.fake_results import fake_result
from planner.errors import UnsupportedModule

_OF_DAEMONS = torch.float32


def name_default_dtypes(graph: fx.Graph) -> None:
    """Raises UnsupportedModule for a call that takes no dtype, such as a quotient of integers."""
    default = torch.get_default_dtype()
    if default is _OF_DAEMONS:
        return
    for node in graph.nodes:
        if not _follows_default(node):
            continue
        names = [argument.name for argument in node.target._schema.arguments]
        if "dtype" not in names:
            within = f" in {where!r}" if (where := module_path(node)) else ""
            raise UnsupportedModule(
                f"{node.target}{within} gives {node.meta['val'].dtype} by torch's default dtype, which daemons leave at"
                f" {_OF_DAEMONS}; convert what it reads, or give it a tensor of that dtype"
            )
        position = names.index("dtype")
        if position < len(node.args):
            node.update_arg(position, node.meta["val"].dtype)
        else:
            node.update_kwarg("dtype", node.meta["val"].dtype)


def _follows_default(node: fx.Node) -> bool:
    """Where a call reads a tensor of floats, its result has that one's dtype."""
    made = node.meta.get("val")
    if not isinstance(node.target, torch._ops.OpOverload) or not isinstance(made, torch.Tensor):
        return False
    read = [one.meta.get("val") for one in node.all_input_nodes]
    if not has_fractions(made) or any(isinstance(one, torch.Tensor) and has_fractions(one) for one in read):
        return False
    default = torch.get_default_dtype()
    torch.set_default_dtype(_OF_DAEMONS)
    try:
        on_daemons = fake_result(node.target, node.args, node.kwargs, like=node)
    finally:
        torch.set_default_dtype(default)
    return isinstance(on_daemons, torch.Tensor) and on_daemons.dtype is not made.dtype
