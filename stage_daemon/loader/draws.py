"""Which nodes draw random numbers: those of operators that may, unless the call itself says that it evaluates."""

from __future__ import annotations

from protos.v1 import graph_pb2 as pb
from stage_daemon.loader.operators import find_operator
from stage_daemon.loader.vocabulary import facts_of


def draws_random(graph: pb.Graph) -> bool:
    """Some node does, here or in a subgraph."""
    return any(node_draws_random(graph, node) for node in graph.nodes)


def node_draws_random(graph: pb.Graph, node: pb.Node) -> bool:
    """Itself, or in a subgraph that it runs."""
    runs_subgraphs = any(argument.WhichOneof("kind") == "subgraph" for argument in node.arguments)
    if runs_subgraphs and any(map(draws_random, graph.subgraphs)):
        return True
    operator = graph.operators[node.operator]
    return operator.random and not _evaluates(operator, node)


def _evaluates(operator: pb.Operator, node: pb.Node) -> bool:
    """Dropout out of training, say: the argument that decides it is a constant, or left out."""
    evaluation = facts_of(operator.name).evaluation
    if evaluation is None:
        return False
    name, value = evaluation
    position = find_operator(operator).argument_names.index(name)
    if position < len(node.arguments):
        given = node.arguments[position]
    else:
        by_keyword = {item.name: item.argument for item in node.keyword_arguments}
        if name not in by_keyword:
            return True
        given = by_keyword[name]
    kind = given.WhichOneof("kind")
    return kind in ("boolean", "floating", "integer") and getattr(given, kind) == value
