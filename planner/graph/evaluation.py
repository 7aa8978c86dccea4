"""A graph that was captured in training, as it evaluates, and one that was captured in evaluation, as it is trained."""

from __future__ import annotations

from planner.graph.ir import Graph, Node
from planner.graph.operators import facts_of

# (input, share, train)
_OF_DROPOUTS = "train:false"
# Of a norm's arguments, whether it takes the batch's statistics.
_TRAINING = 5


def draws_in_evaluation(graph: Graph) -> Node | None:
    """The first node, if any, that draws random numbers in evaluation too.

    Of a dropout an argument says whether it trains. What a module draws by itself `if self.training`, such as the depth
    that a residual block leaves out, is part of the program.
    """
    drawing = (node for node in graph.nodes if node.operator.random)
    return next((node for node in drawing if not facts_of(node.operator.name).evaluation), None)


def trains_as_in_evaluation(graph: Graph) -> Node | None:
    """The first node, if any, that does something else in training than what was captured in evaluation: a dropout, or
    a norm that takes its running statistics.

    None for a module that was captured in training: parts of it that were not are meant so.
    """
    if graph.training:
        return None
    return next((node for node in graph.nodes if _is_in_evaluation(node)), None)


def _is_in_evaluation(node: Node) -> bool:
    facts = facts_of(node.operator.name)
    if facts.evaluation == _OF_DROPOUTS:
        _, share, is_trained = node.arguments
        return bool(share) and not is_trained
    return facts.statistics and not node.arguments[_TRAINING]
