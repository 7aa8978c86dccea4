"""A graph that was captured in training, as it evaluates, and one that was captured in evaluation, as it is trained."""

from __future__ import annotations

from planner.graph.ir import Argument, Graph, Node
from planner.graph.operators import facts_of

# Of the argument that says whether a recurrent network trains, by overload. It stands behind the share to be dropped.
_OF_RECURRENT = {"input": 6, "data": 7}
_OF_DROPOUT, _OF_RRELU, _OF_ATTENTION = 2, 3, 4
# Of a norm: its running mean, and whether it takes the batch's.
_RUNNING_MEAN, _OF_NORM = 3, 5


def draws_in_evaluation(graph: Graph) -> Node | None:
    """The first node, if any, that draws random numbers in evaluation too.

    Of a dropout an argument says whether it trains. What a module draws by itself `if self.training`, such as the depth
    that a residual block leaves out, is part of the program.
    """
    return next((node for node in graph.nodes if _draws_anyway(node)), None)


def trains_as_in_evaluation(graph: Graph) -> Node | None:
    """The first node, if any, that does something else in training than what was captured in evaluation: a dropout, or
    a norm that takes its running statistics.

    None for a module that was captured in training: parts of it that were not are meant so.
    """
    if graph.training:
        return None
    return next((node for node in graph.nodes if _is_trained(node) is False), None)


def answers_as_in_training(graph: Graph) -> Node | None:
    """The first node, if any, that a module which was captured in training would not run so in evaluation: a dropout, a
    norm that takes the batch's statistics, or what draws random numbers `if self.training`."""
    if not graph.training:
        return None
    return next((node for node in graph.nodes if _is_trained(node) or _draws_anyway(node)), None)


def called(node: Node) -> str:
    """By whom, and what, for messages."""
    owner = f"module {node.module_path!r}" if node.module_path else "the module"
    return f"{owner} ({node.operator.qualified_name})"


def _draws_anyway(node: Node) -> bool:
    return node.operator.random and not facts_of(node.operator.name).evaluation


def _is_trained(node: Node) -> bool | None:
    """Of a call that does something else where its module trains, whether it does; None of others."""
    facts = facts_of(node.operator.name)
    name, _, _ = facts.evaluation.partition(":")
    if not name:
        return None
    if name == "dropout_p":
        # Which modules set to 0 themselves.
        return True if _argument(node, _OF_ATTENTION, name) else None
    if name == "train":
        position = _OF_RECURRENT.get(node.operator.overload, _OF_DROPOUT)
        return bool(_argument(node, position, name)) if node.arguments[position - 1] else None
    if not facts.statistics:
        return bool(_argument(node, _OF_RRELU, name))
    return bool(_argument(node, _OF_NORM, name)) if node.arguments[_RUNNING_MEAN] is not None else None


def _argument(node: Node, position: int, name: str) -> Argument:
    return node.arguments[position] if position < len(node.arguments) else dict(node.keyword_arguments).get(name)
