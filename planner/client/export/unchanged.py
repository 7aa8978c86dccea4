"""Leaves a module as it was before its forward ran.

A forward may put tensors of its own into the module: a table of positions that is worked out once and kept for the
next call, as an attribute, a buffer or in a dict. While it is captured those are none that hold numbers, and a module
that kept them could not run any more.
"""

from __future__ import annotations

import copy
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

_CONTAINERS = (dict, OrderedDict, defaultdict, list, set, deque)
# What programs hold too, but for a buffer that is another by its shape or dtype.
_PARAMETERS, _BUFFERS, _MODULES = "_parameters", "_buffers", "_modules"


@contextmanager
def unchanged(module: nn.Module) -> Iterator[Callable[[], list[str]]]:
    """Afterwards every part of the module has the attributes and buffers that it had, and each dict, list and set
    among them its items. Until then it can be asked which attributes are others so far, by name.

    What is in the tensors stays as the forward left it, and so do objects of other classes.
    """
    before = [
        (f"{name}." if name else "", attribute, owner, copy.copy(owner))
        for name, part in module.named_modules()
        for attribute, owner in _containers(vars(part))
    ]

    def changed() -> list[str]:
        names = [
            path + name
            for path, attribute, owner, items in before
            if not _holds(owner, items)
            for name in _changed(attribute, owner, items)
        ]
        return list(dict.fromkeys(names))

    try:
        yield changed
    finally:
        for _, _, owner, items in before:
            if not _holds(owner, items):
                _put_back(owner, items)


def _containers(attributes: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """They themselves, under no name, and what is reached through one of them alone, under its name: parts of a module
    have theirs listed for themselves."""
    pending: list[tuple[str, Any]] = [("", attributes)]
    listed = set[int]()
    while pending:
        attribute, owner = pending.pop()
        if type(owner) in _CONTAINERS and id(owner) not in listed:
            listed.add(id(owner))
            yield attribute, owner
            items = owner.items() if isinstance(owner, dict) else ((attribute, one) for one in owner)
            pending.extend((attribute or name, one) for name, one in items)


def _changed(attribute: str, owner: Any, before: Any) -> list[str]:
    """Attributes of theirs where the owner is all of a part's, or its buffers; else the one that it is reached by."""
    if attribute in (_PARAMETERS, _MODULES):
        return []
    if attribute not in ("", _BUFFERS):
        return [attribute]
    both = {**before, **owner}
    names = [name for name in both if name not in before or owner.get(name) is not before[name]]
    return [name for name in names if not (attribute and is_carried(owner.get(name), before.get(name)))]


def is_carried(buffer: Any, before: Any) -> bool:
    """A program can write it to the one that was there before."""
    is_tensor = isinstance(buffer, torch.Tensor) and isinstance(before, torch.Tensor)
    return is_tensor and (buffer.shape, buffer.dtype) == (before.shape, before.dtype)


def _holds(owner: Any, items: Any) -> bool:
    """The same objects, in the same order. What did not change is left alone: other threads may be reading it."""
    if len(owner) != len(items):
        return False
    if isinstance(owner, set):
        return all(one in items for one in owner)
    if isinstance(owner, dict):
        keys = zip(owner, items, strict=True)
        return all(key is other or key == other for key, other in keys) and _holds([*owner.values()], [*items.values()])
    return all(one is other for one, other in zip(owner, items, strict=True))


def _put_back(owner: Any, items: Any) -> None:
    owner.clear()
    if isinstance(owner, list | deque):
        owner.extend(items)
    else:
        owner.update(items)
