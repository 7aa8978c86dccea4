"""The DAG of a partitioned module: one node for each submodule call, with its devices and bytes."""

from __future__ import annotations

import operator
from collections.abc import Mapping

from torch import fx
from torch.fx import Node

from planner.fx_compat.partitioning.record import Partition

_PREFIX = "submod_"


class DAGNode:
    """`output_nodes`: the getitem calls on what the submodule returns, or the call itself."""

    def __init__(
        self,
        submodule_node: Node,
        input_nodes: list[Node],
        output_nodes: list[Node],
        logical_device_ids: list[int],
        size_bytes: int,
    ) -> None:
        self.submodule_node: Node = submodule_node
        self.input_nodes: list[Node] = input_nodes
        self.output_nodes: list[Node] = output_nodes
        self.logical_device_ids: list[int] = logical_device_ids
        self.size_bytes = size_bytes

    def __str__(self) -> str:
        return str(self.submodule_node)


class DAG:
    def __init__(self) -> None:
        self.nodes: list[DAGNode] = []

    def create_node(
        self,
        submodule_node: Node,
        input_nodes: list[Node],
        output_nodes: list[Node],
        logical_devices: list[int],
        size_bytes: int,
    ) -> None:
        self.nodes.append(DAGNode(submodule_node, input_nodes, output_nodes, logical_devices, size_bytes))


def dag_of(split: fx.GraphModule, partitions: Mapping[int, Partition]) -> DAG:
    """`partitions` by id, which each submodule's name carries. In call order."""
    dag = DAG()
    for node in split.graph.find_nodes(op="call_module"):
        partition = partitions[int(str(node.target).removeprefix(_PREFIX))]
        users = list(node.users)
        unpacked = len(users) > 1 and all(user.target is operator.getitem for user in users)
        dag.create_node(
            node,
            list(node.all_input_nodes),
            users if unpacked else [node],
            partition.logical_device_ids,
            partition.used_mem_bytes,
        )
    return dag
