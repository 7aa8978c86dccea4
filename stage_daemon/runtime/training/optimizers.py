"""Torch's own optimizers over the weights of one stage."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

import torch

from stage_daemon.errors import InvalidRequest
from stage_daemon.runtime.training.records import OptimizerSettings, ParameterGroup
from stage_daemon.runtime.training.weights import Weight

_ADAM = frozenset({"betas", "eps", "weight_decay", "amsgrad", "maximize"})
# Looked up by these names only: what comes over the network never becomes one of Python's.
_OPTIMIZERS: Mapping[str, tuple[Any, frozenset[str]]] = {
    "sgd": (torch.optim.SGD, frozenset({"momentum", "dampening", "weight_decay", "nesterov", "maximize"})),
    "adam": (torch.optim.Adam, _ADAM),
    "adamw": (torch.optim.AdamW, _ADAM),
    "adafactor": (torch.optim.Adafactor, frozenset({"beta2_decay", "eps", "d", "weight_decay", "maximize"})),
}
_MASTER = torch.float32


class StageOptimizer:
    """Raises InvalidRequest for settings that torch's class does not take."""

    def __init__(self, settings: OptimizerSettings, weights: Sequence[Weight]) -> None:
        self._weights = weights
        self._masters: dict[torch.nn.Parameter, torch.Tensor] = {}
        if settings.master_weights:
            for weight in weights:
                if weight.parameter.dtype.itemsize < _MASTER.itemsize:
                    self._masters[weight.parameter] = weight.parameter.detach().to(_MASTER)
        self._optimizer = self._made(settings, weights)

    def step(self, learning_rates: Sequence[float], clip: torch.Tensor | None) -> None:
        """Uses the gradients up, after multiplying them by `clip`."""
        if self._optimizer is None:
            return
        for weight in self._weights:
            if clip is not None and weight.parameter.grad is not None:
                weight.parameter.grad.mul_(clip)
        for parameter, master in self._masters.items():
            master.grad = None if parameter.grad is None else parameter.grad.to(_MASTER)
        for group in self._optimizer.param_groups:
            group["lr"] = learning_rates[group["index"]]
        self._optimizer.step()
        with torch.no_grad():
            for parameter, master in self._masters.items():
                parameter.copy_(master)

    def pushed(self) -> None:
        """Weights were written from outside: masters follow."""
        for parameter, master in self._masters.items():
            master.copy_(parameter.detach())

    def _made(self, settings: OptimizerSettings, weights: Sequence[Weight]) -> torch.optim.Optimizer | None:
        if settings.name not in _OPTIMIZERS:
            raise InvalidRequest(f"optimizer {settings.name!r} is not known, needs one of {', '.join(_OPTIMIZERS)}")
        make, known = _OPTIMIZERS[settings.name]
        for group in settings.groups:
            if unknown := sorted(set(group.options) - known):
                raise InvalidRequest(f"{settings.name} has no option {unknown[0]!r}, it has {', '.join(sorted(known))}")
        members: list[list[torch.Tensor]] = [[] for _ in settings.groups]
        for weight in weights:
            members[_group_of(weight, settings.groups)].append(self._masters.get(weight.parameter, weight.parameter))
        groups = [
            {"params": params, "lr": 0.0, "index": index, **settings.groups[index].options}
            for index, params in enumerate(members)
            if params
        ]
        if not groups:
            return None
        try:
            optimizer: torch.optim.Optimizer = make(groups)
        except (TypeError, ValueError) as error:
            raise InvalidRequest(f"{settings.name}: {error}") from None
        return optimizer


def _group_of(weight: Weight, groups: Sequence[ParameterGroup]) -> int:
    for index, group in enumerate(groups):
        if any(fnmatchcase(name, group.pattern or "*") for name in weight.names):
            return index
    raise InvalidRequest(f"state {weight.names[0]!r} is in no parameter group; give the last one the pattern *")
