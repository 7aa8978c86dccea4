"""Weights whose class holds other tensors (torchao's quantised ones) as those tensors, under names of their own."""

from __future__ import annotations

import copy

from torch import nn
from torch._functorch._aot_autograd.subclass_parametrization import unwrap_tensor_subclass_parameters
from torch.utils._python_dispatch import is_traceable_wrapper_subclass


def with_plain_weights(module: nn.Module) -> nn.Module:
    """The module itself where it has no such weight; else one that shares its tensors, and puts each such weight
    together when it runs. What "layer.weight" holds is then "layer.parametrizations.weight.original0" and so on.
    """
    if not any(is_traceable_wrapper_subclass(parameter) for parameter in module.parameters()):
        return module
    tensors = (*module.parameters(), *module.buffers())
    plain: nn.Module = copy.deepcopy(module, {id(tensor): tensor for tensor in tensors})
    own_modules = set(plain.modules())
    unwrap_tensor_subclass_parameters(plain)
    # What it adds would be in training, as whatever is new.
    for owner in own_modules:
        for part in owner.children():
            if part not in own_modules:
                part.train(owner.training)
    return plain
