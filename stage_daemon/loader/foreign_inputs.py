"""Which inputs a program may read from memory that another process can write to meanwhile: see docs/security.md.

A kernel checks an index and then reads it again, so an index has to lie in memory of this process. Floats that only
enter arithmetic may change at any time: whoever changes them spoils a result of their own. Every node that reads such
an input, or a view of it, is looked at; what is not known to be arithmetic is taken to be something else.
"""

from __future__ import annotations

import operator
from typing import TypeGuard

import torch
from torch import fx

from stage_daemon.loader.vocabulary import facts_of

_REINTERPRETS = (torch.ops.aten.view.dtype,)


def foreign_inputs(program: fx.GraphModule) -> frozenset[int]:
    """Positions of the inputs whose floats only enter arithmetic. What a program gives as it came is not among them."""
    placeholders = [node for node in program.graph.nodes if node.op == "placeholder"]
    return frozenset(position for position, node in enumerate(placeholders) if all(map(_is_harmless, node.users)))


def _is_harmless(node: fx.Node) -> bool:
    if node.op != "call_function":
        return False
    if node.target is operator.getitem or _is_view(node.target):
        return all(map(_is_harmless, node.users))
    return _is_arithmetic(node.target)


def _is_view(target: object) -> bool:
    """Of an argument, or may be."""
    if not _is_aten(target) or target in _REINTERPRETS:
        return False
    marks = [argument.alias_info for argument in target._schema.arguments if argument.alias_info is not None]
    return bool(marks) and not any(mark.is_write for mark in marks)


def _is_arithmetic(target: object) -> bool:
    """And gives memory of its own, and writes to none of its arguments'."""
    if not _is_aten(target) or any(argument.alias_info is not None for argument in target._schema.arguments):
        return False
    facts = facts_of(target._schema.name)
    return (torch.Tag.pointwise in target.tags or facts.arithmetic) and not facts.returns_argument


def _is_aten(target: object) -> TypeGuard[torch._ops.OpOverload[..., object]]:
    return isinstance(target, torch._ops.OpOverload) and target.namespace == "aten"
