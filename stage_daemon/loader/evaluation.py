"""A program captured in training mode, as it evaluates: whether a module trained is an argument of its operators."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import torch
from torch import fx

from stage_daemon.loader.vocabulary import facts_of
from stage_daemon.randomness import start_node

_RUNNING = "running_mean"


def evaluation_program(program: fx.GraphModule, written: Collection[str]) -> fx.GraphModule:
    """A copy that reads the same states; they have to be in their places already. It writes none: of those at the
    attributes `written`, which training writes, it takes copies.

    What the module's own code did only in training is part of the program, and stays.
    """
    copied = fx.Graph()
    copied.output(copied.graph_copy(program.graph, {}))
    for node in copied.nodes:
        schema = getattr(node.target, "_schema", None)
        if schema is None:
            continue
        argument = facts_of(schema.name).evaluation
        names = [one.name for one in schema.arguments]
        if argument is not None and not _takes_the_batchs_statistics(node, names):
            _set(node, names, *argument)
            if node.prev.target is start_node:
                # It draws no more.
                copied.erase_node(node.prev)
    _keep_counts(copied)
    for node in copied.find_nodes(op="get_attr"):
        if node.target in written and not all(map(_is_norm, node.users)):
            _copy(node)
    return fx.GraphModule(program, copied, "EvaluationProgram")


def _takes_the_batchs_statistics(node: fx.Node, names: list[str]) -> bool:
    """A norm that has no running ones does so in evaluation too."""
    return _RUNNING in names and _argument(node, names, _RUNNING) is None


def _argument(node: fx.Node, names: list[str], name: str) -> Any:
    position = names.index(name)
    return node.args[position] if position < len(node.args) else node.kwargs.get(name)


def _set(node: fx.Node, names: list[str], name: str, value: Any) -> None:
    position = names.index(name)
    if position < len(node.args):
        node.args = (*node.args[:position], value, *node.args[position + 1 :])
    else:
        node.kwargs = {**node.kwargs, name: value}


def _is_norm(node: fx.Node) -> bool:
    """Which reads its statistics in evaluation."""
    schema = getattr(node.target, "_schema", None)
    return schema is not None and any(argument.name == _RUNNING for argument in schema.arguments)


def _copy(state: fx.Node) -> None:
    with state.graph.inserting_after(state):
        own = state.graph.call_function(torch.ops.aten.clone.default, (state,))
    state.replace_all_uses_with(own, lambda reader: reader is not own)


def _keep_counts(graph: fx.Graph) -> None:
    """Batch norms count the batches that they were trained on: in-place sums of a state that nothing else reads."""
    for node in tuple(graph.nodes):
        schema = getattr(node.target, "_schema", None)
        if schema is None or schema.name != "aten::add_" or node.users:
            continue
        target = node.args[0]
        if isinstance(target, fx.Node) and target.op == "get_attr" and len(target.users) == 1:
            graph.erase_node(node)
