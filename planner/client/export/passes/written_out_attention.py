"""Writes out flex_attention as torch runs it where nobody compiles it: all scores, changed and masked, then a softmax.

Its block mask only spares a compiled kernel the blocks that are masked whole; which scores are, its function says.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import CodeType
from typing import Any

import torch
import torch.nn.attention.flex_attention as flex
from torch import fx
from torch._C._dynamo.eval_frame import reset_code
from torch._dispatch.python import enable_python_dispatcher
from torch._higher_order_ops.flex_attention import math_attention
from torch.fx.experimental.proxy_tensor import make_fx

from planner.client.export.passes.fill_constants import fill_constants
from planner.client.export.passes.inline_body import drop_unread_bodies, inline_body, replace_call
from planner.client.export.regions import Region, context_of, regions_of, set_regions
from planner.graph.ir import Autocast


@contextmanager
def flex_attention_anywhere() -> Iterator[None]:
    """torch refuses it on a CPU where gradients are asked for, whoever computes them; what it is written out as has
    them. What torch has compiled for sizes of earlier calls would fix sizes that may change: forgotten, it is compiled
    once more.
    """
    for code in flex.flex_attention.__code__.co_consts:
        if isinstance(code, CodeType):
            reset_code(code)
    check = flex._validate_device
    flex._validate_device = lambda query, key, value: None
    try:
        yield
    finally:
        flex._validate_device = check


def write_out_attention(module: fx.GraphModule) -> None:
    """After it none is left. The regions around are flat already."""
    for node in list(module.graph.nodes):
        if node.target is torch.ops.higher_order.flex_attention:
            _write_out(module, node)
    drop_unread_bodies(module.graph)


def _write_out(module: fx.GraphModule, call: fx.Node) -> None:
    arguments: Any = call.args
    query, key, value, score, (*_, mask), scale, options, of_score, of_mask = arguments
    functions = [module.get_submodule(str(one.target)) for one in (score, mask)]
    autocast = _autocast(call, query.meta["val"].device.type)

    def attention(query: Any, key: Any, value: Any, *more: Any) -> Any:
        query, key, value = (_cast(one, autocast) for one in (query, key, value))
        split = more[: len(of_score)], more[len(of_score) :]
        outputs, *beside = math_attention(query, key, value, functions[0], (functions[1],), scale, options, *split)
        return _laid_out_as(query, outputs), *beside

    operands = (query, key, value, *of_score, *of_mask)
    body = _traced(attention, query.meta["val"].fake_mode, [_value(one) for one in operands])
    regions = (*regions_of(call), *_without(autocast))

    def place(copy: fx.Node, node: fx.Node) -> None:
        copy.meta = {**call.meta, "val": node.meta["val"]}
        set_regions(copy, regions)

    with module.graph.inserting_before(call):
        results = inline_body(module, body, operands, place)
    replace_call(call, results)


def _traced(function: Any, mode: Any, operands: list[Any]) -> fx.GraphModule:
    with mode, torch.no_grad(), enable_python_dispatcher():
        body = make_fx(function)(*operands)
    fill_constants(body)
    return body


def _laid_out_as(query: torch.Tensor, outputs: torch.Tensor) -> torch.Tensor:
    """In memory, the query's order of dimensions but the last, which comes last."""
    strides = query.stride()
    order = [*sorted(range(query.dim() - 1), key=lambda dim: -strides[dim]), query.dim() - 1]
    return outputs.permute(order).contiguous().permute([order.index(dim) for dim in range(query.dim())])


def _value(operand: Any) -> Any:
    return operand.meta["val"] if isinstance(operand, fx.Node) else operand


def _autocast(call: fx.Node, device_class: str) -> Autocast | None:
    autocasts = (one for one in context_of(call).autocasts if one.device_class == device_class and one.enabled)
    return next(autocasts, None)


def _cast(tensor: torch.Tensor, autocast: Autocast | None) -> torch.Tensor:
    """As autocast does with what it hands to flex_attention, whose own operators it leaves alone."""
    if autocast is None or not tensor.is_floating_point() or tensor.dtype is torch.float64:
        return tensor
    return tensor.to(getattr(torch, autocast.dtype.value))


def _without(autocast: Autocast | None) -> tuple[Region, ...]:
    if autocast is None:
        return ()
    return (Region(autocast=replace(autocast, enabled=False)),)
