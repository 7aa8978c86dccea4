"""Gradient hooks, and those on tensors that autograd saves: torch.export captures none of them, and a training would go
on without what they do.

In training they are refused. In evaluation they change nothing, and the graph remembers that it lacks them.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import PurePath
from typing import Any

import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks
from torch.nn.modules import module as modules

from planner.errors import UnsupportedModule


@contextlib.contextmanager
def gradient_hooks(module: nn.Module, what: str, *, is_trained: bool) -> Iterator[dict[str, None]]:
    """Those that the module has, and those that its forward meanwhile puts on tensors in this thread, by whose they
    are. Raises UnsupportedModule for one in training, where forward puts it there."""
    hooks, exporting = dict[str, None](), threading.get_ident()
    register_hook: Callable[..., Any] = torch.Tensor.register_hook
    save_by_hooks: Callable[..., Any] = saved_tensors_hooks.__enter__

    def add(owner: str) -> None:
        hooks[f"a gradient hook on {owner}"] = None
        if is_trained:
            raise UnsupportedModule(
                f"{what}: a gradient hook on {owner}, which torch.export does not capture, so that training would go "
                "on without it; take it away, or let a torch.autograd.Function do to gradients what it does"
            )

    def registering(tensor: torch.Tensor, hook: Callable[[torch.Tensor], Any]) -> Any:
        frame = sys._getframe(1)
        # torch's own modes hand the call on.
        is_torchs = frame.f_globals.get("__name__", "").startswith("torch.")
        if threading.get_ident() == exporting and not is_torchs:
            add(f"a tensor, at {PurePath(frame.f_code.co_filename).name}:{frame.f_lineno} in {frame.f_code.co_name}")
        return register_hook(tensor, hook)

    def saving(region: saved_tensors_hooks) -> None:
        kind = type(region)
        # Those of torch itself give back what they were given: they save memory.
        changes = kind is saved_tensors_hooks or not kind.__module__.startswith("torch.")
        if threading.get_ident() == exporting and is_trained and changes:
            raise UnsupportedModule(
                f"{what}: {kind.__name__} around a part of the forward, which torch.export does not capture, so that "
                "training would save what it has as it is; take it away, or let a torch.autograd.Function save what "
                "it makes of it"
            )
        save_by_hooks(region)

    for owner in _owners(module):
        add(owner)
    torch.Tensor.register_hook = registering  # type: ignore[method-assign]
    saved_tensors_hooks.__enter__ = saving  # type: ignore[method-assign]
    try:
        yield hooks
    finally:
        torch.Tensor.register_hook = register_hook  # type: ignore[method-assign]
        saved_tensors_hooks.__enter__ = save_by_hooks  # type: ignore[method-assign]


def _owners(module: nn.Module) -> Iterator[str]:
    for name, parameter in module.named_parameters():
        if parameter.requires_grad and (parameter._backward_hooks or parameter._post_accumulate_grad_hooks):
            yield f"parameter {name!r}"
    for name, part in module.named_modules():
        if part._backward_hooks or part._backward_pre_hooks:
            yield f"module {name!r}" if name else "the module itself"
    if modules._global_backward_hooks or modules._global_backward_pre_hooks:
        yield "every module (register_module_full_backward_hook)"
