"""Puts torch's grouped product in the place of the operator that transformers has for it: the numbers are the same."""

from __future__ import annotations

import torch
from torch import fx

_FALLBACK = "transformers::grouped_mm_fallback"


def grouped_products(graph: fx.Graph) -> None:
    """transformers calls its own while it is captured in other dtypes than bfloat16, and torch's when it runs."""
    for node in graph.nodes:
        if isinstance(node.target, torch._ops.OpOverload) and node.target._schema.name == _FALLBACK:
            arguments = dict(zip(("input", "weight", "offs"), node.args, strict=False)) | dict(node.kwargs)
            node.target = torch.ops.aten._grouped_mm.default
            node.args = (arguments["input"], arguments["weight"], arguments["offs"])
            node.kwargs = {}
