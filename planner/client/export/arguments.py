"""Arguments of captured calls as argument records."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from planner.client.export.dtypes import dtype_of
from planner.errors import UnsupportedModule
from planner.graph.ir import Argument, ArgumentList, DeviceClass, Layout, MemoryFormat

_MEMORY_FORMATS = {getattr(torch, member.value): member for member in MemoryFormat}


def argument_of(given: Any, reference: Callable[[fx.Node], Argument], where: str) -> Argument:
    """`reference` says what stands for another call's result. Raises UnsupportedModule for what no record can hold."""
    if isinstance(given, fx.Node):
        return reference(given)
    if given is None or isinstance(given, bool | int | float | complex | str):
        return given
    if isinstance(given, list):
        return ArgumentList(tuple(argument_of(item, reference, where) for item in given))
    if isinstance(given, tuple):
        return tuple(argument_of(item, reference, where) for item in given)
    if isinstance(given, torch.dtype):
        return dtype_of(given, where)
    if isinstance(given, torch.device):
        return DeviceClass(given.type)
    if isinstance(given, torch.memory_format):
        return _MEMORY_FORMATS[given]
    if given is torch.strided:
        return Layout.STRIDED
    raise UnsupportedModule(f"{where}: an argument is {given!r:.80}, a {type(given).__name__}, which cannot be carried")
