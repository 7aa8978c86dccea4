"""A device's states, and what its optimizers keep for them, read and written by name between steps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import torch

from stage_daemon.errors import InvalidRequest
from stage_daemon.runtime.stage import Stage
from stage_daemon.runtime.training.step import StepInterpreter


class TensorKey(NamedTuple):
    """`optimizer_tensor` as in StageOptimizer.kept; empty for the state itself."""

    state: str
    optimizer_tensor: str = ""


class DeviceStates:
    """What is not here is other devices', and passed over. Tied states are given and taken once, under one name."""

    def __init__(self, stages: Mapping[int, Stage]) -> None:
        self._states: dict[str, torch.Tensor] = {}
        for _, stage in sorted(stages.items()):
            if stage.module is not None:
                self._states.update(stage.module.states())

    def read(
        self, interpreter: StepInterpreter | None, *, with_optimizer: bool
    ) -> Iterator[tuple[TensorKey, torch.Tensor]]:
        told = set()
        for name, tensor in self._states.items():
            if id(tensor) not in told:
                told.add(id(tensor))
                yield TensorKey(name), tensor
        if interpreter is not None and with_optimizer:
            for name, (optimizer, weight) in interpreter.trained().items():
                for kept, tensor in optimizer.kept(weight).items():
                    yield TensorKey(name, kept), tensor

    def check(self, tensors: Mapping[TensorKey, torch.Tensor], interpreter: StepInterpreter | None) -> list[TensorKey]:
        """Those that are here, tied states once. Raises InvalidRequest for one that does not fit; reads no element."""
        found, told = [], set()
        for key, tensor in tensors.items():
            state = self._states.get(key.state)
            if key.optimizer_tensor or state is None:
                continue
            if (state.dtype, state.shape) != (tensor.dtype, tensor.shape):
                raise InvalidRequest(
                    f"state {key.state!r}: found {tensor.dtype} {list(tensor.shape)},"
                    f" needs {state.dtype} {list(state.shape)}"
                )
            if id(state) not in told:
                told.add(id(state))
                found.append(key)
        trained = interpreter.trained() if interpreter else {}
        for name, kept in _by_state(tensors).items():
            if name in trained:
                optimizer, weight = trained[name]
                optimizer.check(weight, kept)
                found += [TensorKey(name, one) for one in kept]
        return found

    def write(self, tensors: Mapping[TensorKey, torch.Tensor], interpreter: StepInterpreter | None) -> None:
        """All or, where `check` refuses them, none."""
        here = self.check(tensors, interpreter)
        with torch.no_grad():
            for key in here:
                if not key.optimizer_tensor:
                    self._states[key.state].copy_(tensors[key])
        if interpreter is None:
            return
        interpreter.pushed(key.state for key in here)
        trained = interpreter.trained()
        for name, kept in _by_state(tensors).items():
            if name in trained:
                optimizer, weight = trained[name]
                optimizer.put_back(weight, kept)


def _by_state(tensors: Mapping[TensorKey, torch.Tensor]) -> dict[str, dict[str, torch.Tensor]]:
    """What optimizers keep."""
    found: dict[str, dict[str, torch.Tensor]] = {}
    for key, tensor in tensors.items():
        if key.optimizer_tensor:
            found.setdefault(key.state, {})[key.optimizer_tensor] = tensor
    return found
