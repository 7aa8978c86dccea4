"""A device's states, and what its optimizers keep for them, read and written by name between steps."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
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
        written: set[str] = set()
        for _, stage in sorted(stages.items()):
            if stage.module is not None:
                self._states.update(stage.module.states())
                written |= stage.module.written_names
        self.written_by_passes = frozenset(written)

    @property
    def names(self) -> tuple[str, ...]:
        """Tied states under each of their names."""
        return tuple(self._states)

    def read(self) -> Iterator[tuple[str, torch.Tensor]]:
        seen = set()
        for name, tensor in self._states.items():
            if id(tensor) not in seen:
                seen.add(id(tensor))
                yield name, tensor

    def select(self, names: Iterable[str], interpreter: StepInterpreter | None) -> dict[TensorKey, torch.Tensor]:
        """These states, and what the optimizer keeps for them. Raises InvalidRequest for one that is not here."""
        selection: dict[TensorKey, torch.Tensor] = {}
        pairs = interpreter.trained().values() if interpreter else ()
        trained = {id(weight.parameter): (optimizer, weight) for optimizer, weight in pairs}
        for name in names:
            if name not in self._states:
                raise InvalidRequest(f"state {name!r} is not here")
            tensor = self._states[name]
            selection[TensorKey(name)] = tensor
            if id(tensor) in trained:
                optimizer, weight = trained[id(tensor)]
                selection |= {
                    TensorKey(name, optimizer_tensor): one for optimizer_tensor, one in optimizer.kept(weight).items()
                }
        return selection

    def check(self, tensors: Mapping[TensorKey, torch.Tensor], interpreter: StepInterpreter | None) -> list[TensorKey]:
        """Those that are here, tied states once. Raises InvalidRequest for one that does not fit; reads no element."""
        keys, seen = [], set()
        for key, tensor in tensors.items():
            state = self._states.get(key.state)
            if key.optimizer_tensor or state is None:
                continue
            if (state.dtype, state.shape) != (tensor.dtype, tensor.shape):
                raise InvalidRequest(
                    f"state {key.state!r}: found {tensor.dtype} {list(tensor.shape)},"
                    f" needs {state.dtype} {list(state.shape)}"
                )
            if id(state) not in seen:
                seen.add(id(state))
                keys.append(key)
        trained = interpreter.trained() if interpreter else {}
        for name, optimizer_tensors in _by_state(tensors).items():
            if name in trained:
                optimizer, weight = trained[name]
                optimizer.check(weight, optimizer_tensors)
                keys += [TensorKey(name, one) for one in optimizer_tensors]
        return keys

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
        for name, optimizer_tensors in _by_state(tensors).items():
            if name in trained:
                optimizer, weight = trained[name]
                optimizer.put_back(weight, optimizer_tensors)


def _by_state(tensors: Mapping[TensorKey, torch.Tensor]) -> dict[str, dict[str, torch.Tensor]]:
    """What optimizers keep."""
    by_state: dict[str, dict[str, torch.Tensor]] = {}
    for key, tensor in tensors.items():
        if key.optimizer_tensor:
            by_state.setdefault(key.state, {})[key.optimizer_tensor] = tensor
    return by_state
