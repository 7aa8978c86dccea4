"""Other operators in a captured call's place or beside it: what they would return, without computing it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import fx
from torch.utils._pytree import tree_map


def fake_result(
    operator: torch._ops.OpOverload, args: tuple[Any, ...], kwargs: Mapping[str, Any], *, like: fx.Node
) -> Any:
    """Tensors with dtype, shape and strides but no data, made in the capture of `like`; None where that has none."""
    held = like.meta.get("val")
    if not isinstance(held, torch._subclasses.FakeTensor):
        return None
    args, kwargs = tree_map(_value, (tuple(args), dict(kwargs)), is_leaf=lambda item: isinstance(item, fx.Node))
    with held.fake_mode, torch.no_grad():
        return operator(*args, **kwargs)


def call_beside(call: fx.Node, operator: Any, *args: Any) -> fx.Node:
    """Another call in the module and the regions of one, where the graph is being written."""
    beside = call.graph.call_function(operator, args)
    beside.meta = {name: value for name, value in call.meta.items() if name != "val"}
    beside.meta["val"] = operator(*fx.map_arg(args, lambda one: one.meta["val"]))
    return beside


def _value(item: Any) -> Any:
    return item.meta["val"] if isinstance(item, fx.Node) else item
