"""Which nodes of a graph are the same work: one operator, arguments of the same shapes, strides, dtypes and constants.

A deep model has few of them: each layer repeats the one before.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from protos.v1 import graph_pb2 as pb
from stage_daemon.errors import InvalidGraph
from stage_daemon.loader.bounds import MAX_ARGUMENT_DEPTH
from stage_daemon.worker.profile.values import ValueTable

Signature = tuple[object, ...]
_NONE: Mapping[int, bool] = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class DistinctNode:
    """`nodes` are indexes into the graph's nodes, ascending; the first stands for all."""

    nodes: tuple[int, ...]
    operator: str

    @property
    def first(self) -> int:
        return self.nodes[0]


def distinct_nodes(
    graph: pb.Graph, values: ValueTable, states: Container[int], with_gradient: Mapping[int, bool] = _NONE
) -> tuple[DistinctNode, ...]:
    """In order of first appearance. Linear in nodes and arguments. To read a state is not to read an activation, and a
    value with a gradient to give is another than one without; `with_gradient` says of which kind."""
    groups: dict[Signature, list[int]] = {}
    for index, node in enumerate(graph.nodes):
        groups.setdefault(_signature(node, values, states, with_gradient), []).append(index)
    return tuple(
        DistinctNode(nodes=tuple(nodes), operator=_operator_name(graph.operators[graph.nodes[nodes[0]].operator]))
        for nodes in groups.values()
    )


def value_ids(node: pb.Node) -> tuple[int, ...]:
    """Values that a node reads, in order, each once."""
    arguments = [*node.arguments, *(item.argument for item in node.keyword_arguments)]
    return tuple(dict.fromkeys(_ids(arguments, MAX_ARGUMENT_DEPTH)))


def _ids(arguments: Iterable[pb.Argument], depth_left: int) -> Iterable[int]:
    if depth_left < 0:
        raise InvalidGraph(f"an argument is nested more than {MAX_ARGUMENT_DEPTH} deep")
    for argument in arguments:
        kind = argument.WhichOneof("kind")
        if kind == "value":
            yield argument.value
        elif kind == "list":
            yield from _ids(argument.list.items, depth_left - 1)
        elif kind == "tuple":
            yield from _ids(argument.tuple.items, depth_left - 1)


def _signature(
    node: pb.Node, values: ValueTable, states: Container[int], with_gradient: Mapping[int, bool]
) -> Signature:
    read = value_ids(node)
    place = {value_id: position for position, value_id in enumerate(read)}
    described = tuple((values.describe(one), one in states, with_gradient.get(one)) for one in read)
    arguments = tuple(_argument(argument, place) for argument in node.arguments)
    keywords = tuple((item.name, _argument(item.argument, place)) for item in node.keyword_arguments)
    return (node.operator, node.context, described, arguments, keywords)


def _argument(argument: pb.Argument, place: Mapping[int, int]) -> object:
    """Constants as they are, values by their place among those that the node reads: `x * x` differs from `x * y`."""
    kind = argument.WhichOneof("kind")
    if kind == "value":
        return ("value", place[argument.value])
    if kind in ("list", "tuple"):
        items = argument.list.items if kind == "list" else argument.tuple.items
        return (kind, *(_argument(item, place) for item in items))
    return argument.SerializeToString(deterministic=True)


def _operator_name(operator: pb.Operator) -> str:
    return f"{operator.name}.{operator.overload}" if operator.overload else operator.name
