"""What a forward does to its module's states otherwise than by writing to them.

A tensor in the place of a buffer (`self.center = 0.9 * self.center + 0.1 * mean`) torch.export has the program write to
the buffer where the module itself does so, unless it is strict, and forgets where a part of the module does: each call
would begin with the buffers that the first one had. What becomes of parameters it forgets everywhere.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from planner.client.export.unchanged import is_carried
from planner.errors import UnsupportedModule


@contextmanager
def changed_states(module: nn.Module, what: str, *, is_trained: bool, strict: bool) -> Iterator[None]:
    """Meanwhile what parts of the module have put in the place of their buffers is written to these as a call ends. One
    of another shape or dtype, such as a table that has become too small, is for this call alone.

    Raises UnsupportedModule for such a one of the module itself, unless `strict`, and where a parameter is replaced or,
    in training, frozen or freed.
    """
    before: dict[nn.Module, _Part] = {}

    def begin(*_: Any) -> None:
        before.update((part, _Part(what, name, part)) for name, part in module.named_modules())

    def call(part: nn.Module, _: Any) -> None:
        """What is frozen for one call alone, nothing tells of at the end."""
        if part in before:
            before[part].check_what_is_trained()

    def end(*_: Any) -> None:
        for part in before.values():
            part.check_parameters()
            if is_trained:
                part.check_what_is_trained()
            if part.module is module and not strict:
                part.check_buffers()
            else:
                part.write_buffers()

    handles = [module.register_forward_pre_hook(begin), module.register_forward_hook(end)]
    if is_trained and not strict:
        handles += [part.register_forward_pre_hook(call) for part in module.modules()]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


class _Part:
    """As it was when the forward began."""

    def __init__(self, what: str, name: str, module: nn.Module) -> None:
        self.module = module
        self._what, self._path = what, f"{name}." if name else ""
        self._buffers, self._parameters = dict(module._buffers), dict(module._parameters)
        self._trained = {name for name, one in self._parameters.items() if one is not None and one.requires_grad}

    def check_parameters(self) -> None:
        for name, parameter in self._parameters.items():
            if self.module._parameters.get(name) is not parameter:
                raise UnsupportedModule(
                    f"{self._what}: the forward puts another tensor in the place of parameter "
                    f"{self._path + name!r}, which no program does; have it compute with that tensor instead"
                )

    def check_what_is_trained(self) -> None:
        for name, parameter in self._parameters.items():
            if parameter is not None and parameter.requires_grad != (name in self._trained):
                raise UnsupportedModule(
                    f"{self._what}: the forward sets requires_grad of parameter {self._path + name!r}, which no "
                    "program does; set it before, or let the forward read the parameter's detach()"
                )

    def check_buffers(self) -> None:
        for name, buffer, now in self._assigned():
            if not is_carried(now, buffer):
                raise UnsupportedModule(
                    f"{self._what}: the forward puts {_described(now)} in the place of buffer {self._path + name!r}, "
                    f"{_described(buffer)}; what a program keeps for its next call has one shape and dtype: make the "
                    "buffer as large as it may become, and write to a part of it"
                )

    def write_buffers(self) -> None:
        for name, buffer, now in self._assigned():
            if is_carried(now, buffer):
                buffer.copy_(now.detach())
                self.module._buffers[name] = buffer

    def _assigned(self) -> Iterator[tuple[str, torch.Tensor, torch.Tensor]]:
        for name, buffer in self._buffers.items():
            now = self.module._buffers.get(name)
            if buffer is not None and now is not None and now is not buffer:
                yield name, buffer, now


def _described(tensor: torch.Tensor) -> str:
    return f"a tensor of {tensor.dtype} {list(tensor.shape)}"
