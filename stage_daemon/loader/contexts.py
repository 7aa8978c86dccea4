"""Grad mode and autocast as the graph says they stand, set where a run of nodes with another context begins.

Contexts are absolute, and `leave_as_found` puts everything back whatever happens in between: a microbatch that raises
leaves no autocast behind for the next.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

import torch

from protos.v1 import graph_pb2 as pb
from stage_daemon.errors import InvalidGraph
from stage_daemon.loader.bounds import shown
from stage_daemon.loader.dtypes import torch_dtype

_DEVICE_CLASSES = ("cpu", "cuda")

# (device class, enabled, dtype, cache enabled)
AutocastState = tuple[str, bool, torch.dtype, bool]

ContextArguments = tuple[bool, tuple[AutocastState, ...]]

DEFAULT: ContextArguments = (True, ())


@dataclass(frozen=True, slots=True)
class _Modes:
    grad_enabled: bool
    autocasts: tuple[AutocastState, ...]


_outer_modes: ContextVar[_Modes] = ContextVar("modes_as_found")


def context_arguments(where: str, context: pb.Context, home: str, device: torch.device) -> ContextArguments:
    """What `enter` takes, from the wire. Autocast for `home`, where the graph was captured, is `device`'s."""
    states: dict[str, AutocastState] = {}
    for autocast in sorted(context.autocasts, key=lambda autocast: autocast.device_class != home):
        if autocast.device_class not in _DEVICE_CLASSES:
            raise InvalidGraph(f"{where}: autocast for {shown(autocast.device_class)}, needs one of {_DEVICE_CLASSES}")
        device_class = device.type if autocast.device_class == home else autocast.device_class
        dtype = torch_dtype(where, autocast.dtype)
        states.setdefault(device_class, (device_class, autocast.enabled, dtype, autocast.cache_enabled))
    return context.grad_enabled, tuple(states.values())


def enter(grad_enabled: bool, autocasts: tuple[AutocastState, ...]) -> None:
    """From here on the modes are as found, but for these. Never enables gradients that the caller has turned off."""
    outer = _outer_modes.get()
    torch._C._set_grad_enabled(outer.grad_enabled and grad_enabled)
    for autocast in (*outer.autocasts, *autocasts):
        _set_autocast(autocast)


@contextmanager
def leave_as_found() -> Iterator[None]:
    modes = _Modes(torch.is_grad_enabled(), tuple(_autocast_state(name) for name in _DEVICE_CLASSES))
    token = _outer_modes.set(modes)
    try:
        yield
    finally:
        _outer_modes.reset(token)
        torch._C._set_grad_enabled(modes.grad_enabled)
        for autocast in modes.autocasts:
            _set_autocast(autocast)
        torch.clear_autocast_cache()


def _autocast_state(device_class: str) -> AutocastState:
    return (
        device_class,
        torch.is_autocast_enabled(device_class),
        torch.get_autocast_dtype(device_class),
        torch.is_autocast_cache_enabled(),
    )


def _set_autocast(autocast: AutocastState) -> None:
    device_class, enabled, dtype, cache_enabled = autocast
    torch.set_autocast_enabled(device_class, enabled)
    torch.set_autocast_dtype(device_class, dtype)
    torch.set_autocast_cache_enabled(cache_enabled)
