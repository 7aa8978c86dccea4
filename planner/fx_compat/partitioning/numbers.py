"""From nodes of an fx graph to the numbers that partitioning sees, and back."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from torch import fx
from torch.fx import Node

from planner.fx_compat.byte_model.operation_graph import OperationGraph
from planner.fx_compat.partitioning.record import Partition
from planner.fx_compat.partitioning.sizes import NodeBytes, size_of_node

GIVEN = frozenset({"placeholder", "get_attr"})


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class NumberedGraph:
    graph: OperationGraph
    nodes: tuple[Node, ...]
    index: Mapping[Node, int]

    def numbers(self, nodes: Collection[Node]) -> frozenset[int]:
        return frozenset(self.index[node] for node in nodes if node in self.index)


def numbered(
    nodes: Sequence[Node], sizes: Mapping[Node, NodeBytes], after: Iterable[tuple[Node, Node]] = ()
) -> NumberedGraph:
    """`nodes` in graph order. Linear."""
    index = {node: position for position, node in enumerate(nodes)}
    graph = OperationGraph(
        out_bytes=tuple(sizes[node].output_size for node in nodes),
        total_bytes=tuple(sizes[node].total_size for node in nodes),
        inputs=tuple(tuple(index[source] for source in node.all_input_nodes) for node in nodes),
        is_operation=tuple(node.op not in GIVEN for node in nodes),
        after=tuple((index[before], index[later]) for before, later in after),
    )
    return NumberedGraph(graph=graph, nodes=tuple(nodes), index=index)


def numbered_partitions(partitions: Sequence[Partition]) -> NumberedGraph:
    """The graph that the partitions' nodes are of, with their sizes; 0 bytes where none is known."""
    graphs: dict[fx.Graph, None] = {node.graph: None for partition in partitions for node in partition.nodes}
    nodes = [node for graph in graphs for node in graph.nodes if node.op != "output"]
    sizes = {node: size for partition in partitions for node, size in partition.sizes.items()}
    return numbered(nodes, {node: sizes.get(node) or _size_or_nothing(node) for node in nodes})


def _size_or_nothing(node: Node) -> NodeBytes:
    own_size = getattr(node, "size_bytes", None)
    return size_of_node(node) if own_size is not None or "tensor_meta" in node.meta else NodeBytes(0, 0)
