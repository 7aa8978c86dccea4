"""A partition of an fx graph as torch.fx's partitioner hands it out and lets it be changed."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from types import MappingProxyType

from torch.fx import Node

from planner.fx_compat.partitioning.sizes import NodeBytes, size_of_node

_GIVEN = frozenset({"placeholder", "get_attr"})


class Partition:
    """`nodes`: operations, and the placeholders and attributes that they read directly.

    `sizes` has the bytes of nodes that carry none themselves. `bfs_level`: the longest path of partitions to this one.
    """

    def __init__(self, partition_id: int, sizes: Mapping[Node, NodeBytes] = MappingProxyType({})) -> None:
        self.nodes: set[Node] = set()
        self.partition_id = partition_id
        self.parents: set[Partition] = set()
        self.children: set[Partition] = set()
        self.bfs_level: int = -1
        self.used_mem_bytes: int = 0
        self.logical_device_ids: list[int] = []
        self.sizes = sizes

    def __str__(self) -> str:
        return str(self.partition_id)

    def recalculate_mem_size(self) -> None:
        self.used_mem_bytes = sum(get_extra_size_of(node, self.nodes, self.sizes) for node in self.nodes)

    def add_node(self, node: Node) -> None:
        """With the placeholders and attributes that it reads."""
        self.nodes.update(source for source in node.all_input_nodes if source.op in _GIVEN)
        self.nodes.add(node)
        self.recalculate_mem_size()

    def remove_node(self, node: Node) -> None:
        """With the placeholders and attributes that nothing else here reads. Nothing if it is not here."""
        if node not in self.nodes:
            return
        self.nodes.remove(node)
        for source in node.all_input_nodes:
            if source.op in _GIVEN and self.nodes.isdisjoint(source.users):
                self.nodes.discard(source)
        self.recalculate_mem_size()


def get_extra_size_of(
    node: Node, nodes: Collection[Node], sizes: Mapping[Node, NodeBytes] = MappingProxyType({})
) -> int:
    """Bytes that `node` needs in or beside `nodes`: itself, and each direct input that is not among them."""

    def size(one: Node) -> NodeBytes:
        return sizes.get(one) or size_of_node(one)

    outside = sum(size(source).output_size for source in node.all_input_nodes if source not in nodes)
    return outside + size(node).total_size
