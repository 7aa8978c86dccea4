"""A graph that was captured in training, as it evaluates."""

from __future__ import annotations

from planner.graph.ir import Graph, Node
from planner.graph.operators import facts_of


def draws_in_evaluation(graph: Graph) -> Node | None:
    """The first node, if any, that draws random numbers in evaluation too.

    Of a dropout an argument says whether it trains. What a module draws by itself `if self.training`, such as the depth
    that a residual block leaves out, is part of the program.
    """
    drawing = (node for node in graph.nodes if node.operator.random)
    return next((node for node in drawing if not facts_of(node.operator.name).evaluation), None)
