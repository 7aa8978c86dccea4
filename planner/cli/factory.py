"""Modules named on the command line: "package.module:factory", called here and exported."""

from __future__ import annotations

import gc
import importlib
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from planner.client import ExportedModel, export
from planner.errors import InvalidArgument

_RETURNS = "(module, args[, kwargs[, dynamic_shapes]]) or (module, kwargs[, dynamic_shapes])"


def export_from_factory(target: str, name: str | None, *, compare: bool = True) -> ExportedModel:
    """`target` names a callable without arguments; the current directory is searched first.

    It returns the module, a tuple of example arguments or a dict of keyword arguments (or one, then the other), and
    optionally the dynamic shapes. Needs torch.
    """
    module, args, kwargs, dynamic_shapes = _unpack(call_factory(target), target)
    name = name or target.rpartition(":")[2]
    return export(module, args, kwargs, dynamic_shapes=dynamic_shapes, name=name, compare=compare)


def call_factory(target: str) -> Any:
    """What package.module:callable returns. Raises InvalidArgument, saying why, where it cannot be called."""
    factory = callable_at(target)
    try:
        return factory()
    except Exception as error:
        raise InvalidArgument(f"{target} raised {type(error).__name__}: {error}") from error


def callable_at(target: str) -> Callable[..., Any]:
    """package.module:callable itself. Raises InvalidArgument where there is none."""
    module_name, _, attribute = target.partition(":")
    if not module_name or not attribute:
        raise InvalidArgument(f"{target!r} is neither a path nor package.module:factory")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        with _imports():
            factory = getattr(importlib.import_module(module_name), attribute, None)
    except ImportError as error:
        raise InvalidArgument(f"{target}: cannot import {module_name}: {error}") from error
    if not callable(factory):
        raise InvalidArgument(f"{target}: {module_name} has no callable {attribute!r}")
    return factory  # type: ignore[no-any-return]


@contextmanager
def _imports() -> Iterator[None]:
    """What is imported stays: to look through it for garbage, then and later, takes a tenth of a submission's time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if was_enabled:
            gc.enable()


def _unpack(result: Any, target: str) -> tuple[Any, tuple[Any, ...], dict[str, Any], Any]:
    if not isinstance(result, tuple) or not 2 <= len(result) <= 4:
        raise InvalidArgument(f"{target} returned {type(result).__name__}, needs {_RETURNS}")
    module, *rest = result
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = {}
    first = rest.pop(0)
    if isinstance(first, dict):
        kwargs = first
    else:
        args = tuple(first) if isinstance(first, (tuple, list)) else (first,)
        if rest:
            kwargs = rest.pop(0) or {}
    if len(rest) > 1 or not isinstance(kwargs, dict):
        raise InvalidArgument(f"{target} returned {len(result)} items, needs {_RETURNS}")
    return module, args, kwargs, rest[0] if rest else None
