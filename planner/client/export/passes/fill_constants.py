"""Tensors that a body makes of one number, such as torch.tensor(0): a body holds no states, so it fills them anew."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx
from torch._subclasses import FakeTensor


def fill_constants(module: fx.GraphModule) -> None:
    """After it the module fetches no tensor whose elements are all the same number."""
    for node in module.graph.find_nodes(op="get_attr"):
        constant = getattr(module, str(node.target), None)
        if not isinstance(constant, torch.Tensor) or isinstance(constant, FakeTensor) or not _is_filled(constant):
            continue
        number = constant.reshape(-1)[0].item()
        with module.graph.inserting_before(node):
            arguments: dict[str, Any] = {"dtype": constant.dtype, "device": constant.device}
            filled = module.graph.call_function(torch.ops.aten.full.default, (list(constant.shape), number), arguments)
        filled.meta = {**node.meta, "val": _without_content(module.graph, constant)}
        node.replace_all_uses_with(filled)
        module.graph.erase_node(node)


def _is_filled(constant: torch.Tensor) -> bool:
    """To the bit: 0.0 and -0.0 are two numbers."""
    rows = constant.detach().cpu().contiguous().reshape(-1, 1).view(torch.uint8)
    return constant.numel() > 0 and bool((rows == rows[0]).all())


def _without_content(graph: fx.Graph, constant: torch.Tensor) -> Any:
    """As the values of other nodes are, whose shapes are computed with it."""
    values = (node.meta.get("val") for node in graph.nodes)
    mode = next((value.fake_mode for value in values if isinstance(value, FakeTensor)), None)
    return constant if mode is None else mode.from_tensor(constant)
