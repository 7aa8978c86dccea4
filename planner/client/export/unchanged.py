"""Leaves a module as it was before its forward ran.

A forward may put tensors of its own into the module: a table of positions that is worked out once and kept for the
next call, as an attribute, a buffer or in a dict. While it is captured those are none that hold numbers, and a module
that kept them could not run any more.
"""

from __future__ import annotations

import copy
from collections import OrderedDict, defaultdict, deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn

_CONTAINERS = (dict, OrderedDict, defaultdict, list, set, deque)


@contextmanager
def unchanged(module: nn.Module) -> Iterator[None]:
    """Afterwards every part of the module has the attributes and buffers that it had, and each dict, list and set
    among them its items.

    What is in the tensors stays as the forward left it, and so do objects of other classes.
    """
    before = [(owner, copy.copy(owner)) for part in module.modules() for owner in _containers(vars(part))]
    try:
        yield
    finally:
        for owner, items in before:
            if not _holds(owner, items):
                _put_back(owner, items)


def _containers(outermost: Any) -> Iterator[Any]:
    """It, and those that are reached through it alone: parts of a module have theirs listed for themselves."""
    pending, listed = [outermost], set()
    while pending:
        owner = pending.pop()
        if type(owner) in _CONTAINERS and id(owner) not in listed:
            listed.add(id(owner))
            yield owner
            pending.extend(owner.values() if isinstance(owner, dict) else owner)


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
