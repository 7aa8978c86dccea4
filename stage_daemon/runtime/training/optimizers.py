"""Torch's own optimizers over the weights of one stage."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
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
MASTER = "master"
_STEP = "step"


class StageOptimizer:
    """Raises InvalidRequest for settings that torch's class does not take."""

    def __init__(self, settings: OptimizerSettings, weights: Sequence[Weight]) -> None:
        self._weights = weights
        for weight in weights:
            has_master = settings.master_weights and weight.parameter.dtype.itemsize < _MASTER.itemsize
            weight.keep_master(_MASTER if has_master else None)
        self._optimizer = self._build(settings, weights)

    def step(self, learning_rates: Sequence[float], clip: torch.Tensor | None) -> None:
        """Uses the gradients up, after multiplying them by `clip`."""
        if self._optimizer is None:
            return
        for weight in self._weights:
            if clip is not None and weight.stepped.grad is not None:
                weight.stepped.grad.mul_(clip)
        for group in self._optimizer.param_groups:
            group["lr"] = learning_rates[group["index"]]
        self._optimizer.step()
        with torch.no_grad():
            for weight in self._weights:
                if weight.master is not None:
                    weight.parameter.copy_(weight.master)

    def pushed(self, names: frozenset[str]) -> None:
        """States of these names were written from outside: their masters follow."""
        for weight in self._weights:
            if weight.master is not None and not names.isdisjoint(weight.names):
                weight.master.copy_(weight.parameter.detach())

    def kept(self, weight: Weight) -> dict[str, torch.Tensor]:
        """What is kept for a weight beside it, as torch's class names it, and its master. Before its first step that
        is at most the master."""
        tensors: dict[str, torch.Tensor] = {}
        if weight.master is not None:
            tensors[MASTER] = weight.master
        if self._optimizer is not None:
            state = self._optimizer.state.get(weight.stepped, {})
            tensors |= {name: tensor for name, tensor in state.items() if isinstance(tensor, torch.Tensor)}
        return tensors

    def check(self, weight: Weight, tensors: Mapping[str, torch.Tensor]) -> None:
        """Raises InvalidRequest for what this optimizer does not keep, or not so."""
        needed = self._declared(weight)
        masters = {MASTER} & needed.keys()
        if tensors.keys() not in (needed.keys(), masters):
            raise InvalidRequest(
                f"state {weight.names[0]!r}: found the optimizer's {_listed(tensors)}, needs {_listed(needed)}; train"
                " with the same optimizer and options"
            )
        for name, tensor in tensors.items():
            if (tensor.dtype, tuple(tensor.shape)) != needed[name]:
                dtype, dims = needed[name]
                raise InvalidRequest(
                    f"state {weight.names[0]!r}: found {name} of {tensor.dtype} {list(tensor.shape)}, needs {dtype}"
                    f" {list(dims)}"
                )

    def put_back(self, weight: Weight, tensors: Mapping[str, torch.Tensor]) -> None:
        """As `kept` gave them, and `check` found them right."""
        stepped = weight.stepped
        if MASTER in tensors:
            assert weight.master is not None
            weight.master.copy_(tensors[MASTER])
        assert self._optimizer is not None
        # Torch counts steps on the CPU.
        self._optimizer.state[stepped] = {
            name: tensor if name == _STEP else tensor.to(stepped.device)
            for name, tensor in tensors.items()
            if name != MASTER
        }

    def _declared(self, weight: Weight) -> dict[str, tuple[torch.dtype, tuple[int, ...]]]:
        """Of what is kept for a weight that has been stepped, all dtypes and dims."""
        stepped = weight.stepped
        like = stepped.dtype, tuple(stepped.shape)
        layouts = {} if weight.master is None else {MASTER: like}
        assert self._optimizer is not None
        [options] = [
            group
            for group in self._optimizer.param_groups
            if any(parameter is stepped for parameter in group["params"])
        ]
        if isinstance(self._optimizer, torch.optim.SGD):
            return layouts | ({"momentum_buffer": like} if options["momentum"] else {})
        layouts[_STEP] = torch.float32, ()
        if isinstance(self._optimizer, torch.optim.Adafactor):
            dtype, dims = like
            if len(dims) < 2:
                return layouts | {"variance": like}
            return layouts | {"row_var": (dtype, (*dims[:-1], 1)), "col_var": (dtype, (*dims[:-2], 1, dims[-1]))}
        layouts |= {"exp_avg": like, "exp_avg_sq": like}
        return layouts | ({"max_exp_avg_sq": like} if options["amsgrad"] else {})

    def _build(self, settings: OptimizerSettings, weights: Sequence[Weight]) -> torch.optim.Optimizer | None:
        if settings.name not in _OPTIMIZERS:
            raise InvalidRequest(f"optimizer {settings.name!r} is not known, needs one of {', '.join(_OPTIMIZERS)}")
        make, option_names = _OPTIMIZERS[settings.name]
        for group in settings.groups:
            if unknown := sorted(set(group.options) - option_names):
                raise InvalidRequest(
                    f"{settings.name} has no option {unknown[0]!r}, it has {', '.join(sorted(option_names))}"
                )
            _try_out(settings.name, make, group.options)
        members: list[list[torch.Tensor]] = [[] for _ in settings.groups]
        for weight in weights:
            members[_group_of(weight, settings.groups)].append(weight.stepped)
        groups = [
            {"params": params, "lr": 0.0, "index": index, **settings.groups[index].options}
            for index, params in enumerate(members)
            if params
        ]
        if not groups:
            return None
        optimizer: torch.optim.Optimizer = make(groups)
        return optimizer


def _try_out(name: str, make: Any, options: Mapping[str, Any]) -> None:
    """A step of one element, since torch's classes look at no option that a group has, and a worker whose step fails
    ends."""
    parameter = torch.zeros(1)
    parameter.grad = torch.ones(1)
    try:
        make([parameter], lr=1.0, **options).step()
    except Exception as error:
        raise InvalidRequest(f"{name} does not take {_written(options)}: {error}") from None
    if not parameter.isfinite():
        raise InvalidRequest(f"{name} with {_written(options)} makes {parameter.item()} of a gradient of 1")


def _written(options: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={option}" for name, option in options.items())


def _group_of(weight: Weight, groups: Sequence[ParameterGroup]) -> int:
    for index, group in enumerate(groups):
        if any(fnmatchcase(name, group.pattern or "*") for name in weight.module_names):
            return index
    raise InvalidRequest(f"state {weight.names[0]!r} is in no parameter group; give the last one the pattern *")


def _listed(names: Iterable[str]) -> str:
    return ", ".join(sorted(names)) or "nothing"
