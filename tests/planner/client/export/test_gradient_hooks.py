"""Gradient hooks are no part of a program: no training goes on without one that its module has."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.modules.module import register_module_full_backward_hook

from planner.client.export import export
from planner.errors import UnsupportedModule

FEATURES = torch.ones(3, 4)


class Layers(nn.Module):
    def __init__(self, *, hooks_a_tensor: bool = False) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
        self.hooks_a_tensor = hooks_a_tensor

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        hidden: torch.Tensor = self.inner(features)
        if self.hooks_a_tensor:
            hidden.register_hook(torch.zeros_like)
        return hidden.relu()


def layers(change: Callable[[Layers], Any]) -> Layers:
    module = Layers()
    change(module)
    return module


HOOKED = {
    "parameter 'inner.0.weight'": layers(lambda it: it.inner[0].weight.register_hook(torch.zeros_like)),
    "parameter 'inner.1.bias'": layers(
        lambda it: it.inner[1].bias.register_post_accumulate_grad_hook(lambda parameter: None)
    ),
    "module 'inner.0'": layers(lambda it: it.inner[0].register_full_backward_hook(lambda *_: None)),
    "module 'inner.1'": layers(lambda it: it.inner[1].register_full_backward_pre_hook(lambda *_: None)),
    "the module itself": layers(lambda it: it.register_full_backward_hook(lambda *_: None)),
    "a tensor, at test_gradient_hooks.py:": Layers(hooks_a_tensor=True),
}


@pytest.mark.parametrize("owner", list(HOOKED))
def test_it_is_refused_in_training_and_remembered_in_evaluation(owner: str) -> None:
    with pytest.raises(UnsupportedModule, match=f"Layers: a gradient hook on {owner}.*training would go on without it"):
        export(HOOKED[owner].train(), (FEATURES,))
    (lost,) = export(HOOKED[owner].eval(), (FEATURES,)).graph.custom_backwards
    assert lost.startswith(f"a gradient hook on {owner}")


def test_one_for_all_modules_is_refused_too() -> None:
    handle = register_module_full_backward_hook(lambda *_: None)
    try:
        with pytest.raises(UnsupportedModule, match=r"a gradient hook on every module \(register_module_full_backw"):
            export(Layers().train(), (FEATURES,))
    finally:
        handle.remove()


def test_hooks_that_change_no_gradient_are_none() -> None:
    module = Layers().train()
    module.inner[0].register_forward_hook(lambda part, inputs, output: 2 * output)
    module.inner[0].register_forward_pre_hook(lambda part, inputs: None)
    module.inner[1].weight.register_hook(torch.zeros_like)
    module.inner[1].weight.requires_grad_(False)
    graph = export(module, (FEATURES,)).graph
    assert graph.custom_backwards == ()
    assert "aten::mul" in [node.operator.name for node in graph.nodes]


def test_tensors_take_hooks_again_afterwards() -> None:
    with pytest.raises(UnsupportedModule):
        export(Layers(hooks_a_tensor=True).train(), (FEATURES,))
    weight = torch.ones(2, requires_grad=True)
    weight.register_hook(lambda gradient: 3 * gradient)
    weight.sum().backward()
    assert weight.grad is not None
    assert weight.grad.tolist() == [3, 3]


class SavesLess(nn.Module):
    """What autograd keeps of its part, as `region` keeps it."""

    def __init__(self, region: Callable[[], Any]) -> None:
        super().__init__()
        self.inner, self.region = nn.Linear(4, 4), region

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        with self.region():
            out: torch.Tensor = self.inner(features).sigmoid()
        return out


def rounded() -> Any:
    return torch.autograd.graph.saved_tensors_hooks(torch.Tensor.bfloat16, torch.Tensor.float)


def test_what_changes_saved_tensors_is_refused_in_training() -> None:
    with pytest.raises(UnsupportedModule, match="SavesLess: saved_tensors_hooks around a part of the forward"):
        export(SavesLess(rounded).train(), (FEATURES,))
    assert export(SavesLess(rounded).eval(), (FEATURES,)).graph.nodes
    assert export(SavesLess(torch.autograd.graph.save_on_cpu).train(), (FEATURES,)).graph.nodes
    with rounded():
        pass
