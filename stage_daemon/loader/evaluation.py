"""A program captured in training mode, as it evaluates: whether a module trained is an argument of its operators."""

from __future__ import annotations

from typing import Any

from torch import fx

from stage_daemon.loader.vocabulary import facts_of
from stage_daemon.randomness import start_node

_RUNNING = "running_mean"


def evaluation_program(program: fx.GraphModule) -> fx.GraphModule:
    """A copy that reads the same states; they have to be in their places already.

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


def _keep_counts(graph: fx.Graph) -> None:
    """Batch norms count the batches that they were trained on: in-place sums of a state that nothing else reads."""
    for node in tuple(graph.nodes):
        schema = getattr(node.target, "_schema", None)
        if schema is None or schema.name != "aten::add_" or node.users:
            continue
        target = node.args[0]
        if isinstance(target, fx.Node) and target.op == "get_attr" and len(target.users) == 1:
            graph.erase_node(node)
