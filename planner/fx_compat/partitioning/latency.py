"""Latencies of partitions and of a partitioned graph, by torch.fx's definitions and signatures, in linear time."""

from __future__ import annotations

from collections.abc import Mapping

from torch.fx import Node

from planner.fx_compat.byte_model.critical_path import (
    longest_path_inside,
    longest_path_over,
    transfer_bytes,
    transfer_seconds,
)
from planner.fx_compat.byte_model.grouping import running_order
from planner.fx_compat.partitioning.config import NodeLatency, PartitionLatency
from planner.fx_compat.partitioning.errors import NothingToPartition
from planner.fx_compat.partitioning.numbers import NumberedGraph, numbered_partitions
from planner.fx_compat.partitioning.record import Partition


def get_latency_of_one_partition(
    partition: Partition, node_to_latency_mapping: Mapping[Node, NodeLatency]
) -> PartitionLatency:
    return _latency_inside(numbered_partitions([partition]), partition, node_to_latency_mapping)


def get_partition_to_latency_mapping(
    partitions: list[Partition], node_to_latency_mapping: Mapping[Node, NodeLatency]
) -> dict[Partition, PartitionLatency]:
    graph = numbered_partitions(partitions)
    return {partition: _latency_inside(graph, partition, node_to_latency_mapping) for partition in partitions}


def _latency_inside(
    graph: NumberedGraph, partition: Partition, latencies: Mapping[Node, NodeLatency]
) -> PartitionLatency:
    group = graph.numbers(partition.nodes)
    memory, compute = {}, {}
    for node in sorted(group):
        if graph.graph.is_operation[node]:
            latency = latencies.get(graph.nodes[node])
            if latency is None:
                name = graph.nodes[node].name
                raise NothingToPartition(f"node {name!r} has no entry in node_to_latency_mapping", node=name)
            memory[node], compute[node] = latency
    longest = longest_path_inside(graph.graph, group, memory, compute)
    return PartitionLatency(longest.memory, longest.compute, longest.overall)


def get_comm_latency_between(
    parent_partition: Partition, child_partition: Partition, transfer_rate_bytes_per_sec: float
) -> float:
    """0 on the same devices; infinite at rate 0 if there is anything to send."""
    graph = numbered_partitions([parent_partition, child_partition])
    return _comm_latency(graph, parent_partition, child_partition, transfer_rate_bytes_per_sec)


def _comm_latency(graph: NumberedGraph, parent: Partition, child: Partition, rate: float) -> float:
    if parent.logical_device_ids and parent.logical_device_ids == child.logical_device_ids:
        return 0.0
    size = transfer_bytes(graph.graph, graph.numbers(parent.nodes), graph.numbers(child.nodes))
    return transfer_seconds(size, rate)


def get_latency_of_partitioned_graph(
    partitions: list[Partition],
    partition_to_latency_mapping: Mapping[Partition, PartitionLatency],
    transfer_rate_bytes_per_sec: float,
) -> float:
    """The longest path over partitions, along their `children`. Raises NothingToPartition if they have a cycle."""
    graph = numbered_partitions(partitions)
    position = {partition: index for index, partition in enumerate(partitions)}
    children = [sorted(position[child] for child in partition.children) for partition in partitions]
    order = running_order(children)
    if len(order) < len(partitions):
        stuck = ", ".join(str(partitions[index]) for index in sorted(set(position.values()) - set(order)))
        raise NothingToPartition(f"partitions {stuck} depend on each other, so none of them can run first")
    seconds = [partition_to_latency_mapping[partition].overall_latency_sec for partition in partitions]
    edges = {
        (parent, child): _comm_latency(graph, partitions[parent], partitions[child], transfer_rate_bytes_per_sec)
        for parent, children_of_parent in enumerate(children)
        for child in children_of_parent
    }
    return longest_path_over(order, children, seconds, edges)
