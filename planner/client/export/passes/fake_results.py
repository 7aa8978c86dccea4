"""What another operator would return in a captured call's place, without computing it."""

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


def _value(item: Any) -> Any:
    return item.meta["val"] if isinstance(item, fx.Node) else item
