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


def argument_of(argument: Any, reference: Callable[[fx.Node], Argument], where: str) -> Argument:
    """`reference` says what stands for another call's result. Raises UnsupportedModule for what no record can hold."""
    if isinstance(argument, fx.Node):
        return reference(argument)
    if argument is None or isinstance(argument, bool | int | float | complex | str):
        return argument
    if isinstance(argument, list):
        return ArgumentList(tuple(argument_of(item, reference, where) for item in argument))
    if isinstance(argument, tuple):
        return tuple(argument_of(item, reference, where) for item in argument)
    if isinstance(argument, torch.dtype):
        return dtype_of(argument, where)
    if isinstance(argument, torch.device):
        return DeviceClass(argument.type)
    if isinstance(argument, torch.memory_format):
        return _MEMORY_FORMATS[argument]
    if argument is torch.strided:
        return Layout.STRIDED
    raise UnsupportedModule(
        f"{where}: an argument is {argument!r:.80}, a {type(argument).__name__}, which cannot be carried"
    )
