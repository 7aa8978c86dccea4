"""Puts the stages of a split child into its parent's graph in place of the call of the child.

Slapo refuses children that return tuples, or whose last stage's items are taken after it; here a child may return any
structure, and whoever takes an item of it takes the stage's value directly.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from inspect import Signature
from typing import Any

from torch import fx

from planner.fx_compat.splitting.errors import PipelineError

# On the last node of a stage: Slapo's mark that the pipeline is cut after it.
CUT_MARK = "partition"


def inline_stages(parent: fx.GraphModule, call: fx.Node, split: fx.GraphModule) -> None:
    """`call` calls, in the parent, what `split` is the split form of. Each stage but the last is cut after.

    The last is cut after only if the call was. Raises PipelineError where the parent uses an item that is not returned.
    """
    copies: dict[fx.Node, Any] = _given(call, split)
    ends: list[fx.Node] = []
    for node in split.graph.nodes:
        with parent.graph.inserting_before(call):
            if node.op == "get_attr":
                copies[node] = parent.graph.get_attr(f"{call.target}.{node.target}")
            elif node.op == "call_module":
                copies[node] = parent.graph.call_module(_add_stage(parent, split, node), *_arguments(node, copies))
                ends.append(copies[node])
            elif node.target is operator.getitem:
                copies[node] = parent.graph.call_function(operator.getitem, *_arguments(node, copies))
                ends[-1:] = [copies[node]] if ends else []
            elif node.op not in ("placeholder", "output"):
                raise PipelineError(f"{node.name} ({node.op} {node.target}) lies in no stage of {call.target}")
    if not ends:
        raise PipelineError(f"{call.target} has no stage to put in its place")
    for end in ends if CUT_MARK in call.meta else ends[:-1]:
        end.meta[CUT_MARK] = True
    for end in split.graph.find_nodes(op="output"):
        _replace_uses(parent.graph, call, fx.map_arg(end.args[0], copies.__getitem__))
    parent.graph.erase_node(call)
    _drop_unused(parent, str(call.target))
    parent.graph.lint()
    parent.recompile()


def _given(call: fx.Node, split: fx.GraphModule) -> dict[fx.Node, Any]:
    """What the call passes for each placeholder: by position, by name, or the default."""
    placeholders = split.graph.find_nodes(op="placeholder")
    arguments: dict[fx.Node, Any] = dict(zip(placeholders, call.args, strict=False))
    for placeholder in placeholders[len(call.args) :]:
        default = placeholder.args[0] if placeholder.args else Signature.empty
        passed = call.kwargs.get(str(placeholder.target), default)
        if passed is Signature.empty:
            raise PipelineError(f"{call.name} passes nothing for {placeholder.target} of {call.target}")
        arguments[placeholder] = passed
    return arguments


def _add_stage(parent: fx.GraphModule, split: fx.GraphModule, node: fx.Node) -> str:
    """The name under which the parent has the stage from now on: its own if that is free."""
    name, number = str(node.target), 0
    while hasattr(parent, name):
        number += 1
        name = f"{node.target}_{number}"
    parent.add_module(name, split.get_submodule(str(node.target)))
    return name


def _arguments(node: fx.Node, copies: Mapping[fx.Node, Any]) -> tuple[Any, Any]:
    return fx.map_arg(node.args, copies.__getitem__), fx.map_arg(node.kwargs, copies.__getitem__)


def _replace_uses(graph: fx.Graph, old: fx.Node, new: Any) -> None:
    """Every use of `old` becomes one of `new`, a structure of nodes; an item of it becomes that item."""
    if isinstance(new, fx.Node):
        old.replace_all_uses_with(new)
        return
    for user in list(old.users):
        if _takes_item(user, old, new):
            _replace_uses(graph, user, _item(user, new))
            graph.erase_node(user)
        else:
            user.args = fx.map_arg(user.args, lambda node: new if node is old else node)
            user.kwargs = fx.map_arg(user.kwargs, lambda node: new if node is old else node)


def _takes_item(user: fx.Node, old: fx.Node, new: Any) -> bool:
    if not user.args or user.args[0] is not old:
        return False
    if user.target is getattr or (user.op, user.target) == ("call_method", "get"):
        return isinstance(new, Mapping)
    return user.target is operator.getitem and isinstance(new, Mapping | list | tuple)


def _item(user: fx.Node, structure: Any) -> Any:
    key = user.args[1]
    if user.op == "call_method":
        return structure.get(key, user.args[2] if len(user.args) > 2 else None)
    try:
        return structure[key]
    except (KeyError, IndexError, TypeError) as error:
        raise PipelineError(f"{user.name} takes item {key!r}, and what is returned there is {structure}") from error


def _drop_unused(parent: fx.GraphModule, target: str) -> None:
    used = (str(node.target) for node in parent.graph.nodes if node.op in ("call_module", "get_attr"))
    if not any(name == target or name.startswith(f"{target}.") for name in used):
        parent.delete_submodule(target)
