"""torch.fx's accelerator partitioner, by its names and signatures, on this planner's algorithms.

Modes, sizes and latencies mean what they mean in torch.fx.experimental; results of the single, size-based, sparse and
given partitions are the same wherever torch's are sound. What differs: a program that fits is not refused; devices may
be filled to the last byte and be unequal; given partitions are checked; moves that are found reach the module; several
outputs of one node are sized; writes in place and random draws keep their order; the caller's graph is only read.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import fx
from torch.fx import Node
from torch.fx._lazy_graph_module import _use_lazy_graph_module

from planner.fx_compat.partitioning.checks import check_devices
from planner.fx_compat.partitioning.config import (
    Device,
    NodeLatency,
    PartitionerConfig,
    PartitionLatency,
    PartitionMode,
    own_config,
)
from planner.fx_compat.partitioning.dag import DAG, DAGNode, dag_of
from planner.fx_compat.partitioning.devices import (
    get_device_partition_stats,
    get_device_to_partitions_mapping,
    get_logical_id_to_device,
)
from planner.fx_compat.partitioning.errors import NothingToPartition
from planner.fx_compat.partitioning.groups import (
    check_dependency,
    combine_two_partitions,
    get_bfs_level_partition,
    get_node_to_partition_mapping,
    reorganize_partitions,
    reset_partition_device,
    set_parents_and_children,
)
from planner.fx_compat.partitioning.latency import (
    get_comm_latency_between,
    get_latency_of_one_partition,
    get_latency_of_partitioned_graph,
    get_partition_to_latency_mapping,
)
from planner.fx_compat.partitioning.modes import choose_partitions, partitions_as_given, saturate, single_partition
from planner.fx_compat.partitioning.numbers import GIVEN, NumberedGraph, numbered
from planner.fx_compat.partitioning.record import Partition, get_extra_size_of
from planner.fx_compat.partitioning.sizes import get_size_of_all_nodes, nodes_before_output, sizes_of_nodes
from planner.fx_compat.split_module import split_module
from planner.fx_compat.splitting.order import effect_pairs

__all__ = [
    "DAG",
    "DAGNode",
    "Device",
    "NodeLatency",
    "Partition",
    "PartitionLatency",
    "PartitionMode",
    "PartitionResult",
    "Partitioner",
    "PartitionerConfig",
    "check_dependency",
    "combine_two_partitions",
    "get_bfs_level_partition",
    "get_comm_latency_between",
    "get_device_partition_stats",
    "get_device_to_partitions_mapping",
    "get_extra_size_of",
    "get_latency_of_one_partition",
    "get_latency_of_partitioned_graph",
    "get_logical_id_to_device",
    "get_node_to_partition_mapping",
    "get_partition_to_latency_mapping",
    "get_size_of_all_nodes",
    "reorganize_partitions",
    "reset_partition_device",
    "set_parents_and_children",
]


class PartitionResult(NamedTuple):
    dag: DAG
    module_with_submodules: fx.GraphModule


class Partitioner:
    """Splits a traced module over devices. May be used again: each call starts anew.

    After a call, `partitions` are those of its result, with their devices, and `node_to_partition` has their ids.

    `partition_graph` calls the other methods, as torch.fx's does: a subclass may choose partitions by its own. Called
    alone, they are about `graph_module` and `devices`.
    """

    graph_module: fx.GraphModule
    torch_module: torch.nn.Module

    def __init__(self) -> None:
        self.partitions: list[Partition] = []
        self.node_to_partition: dict[Node, int] = {}
        self.devices: list[Device] = []
        self._program: NumberedGraph | None = None

    def partition_graph(
        self, fx_module: fx.GraphModule, torch_module: torch.nn.Module, partitioner_config: PartitionerConfig
    ) -> PartitionResult:
        """The nodes need shapes (see get_size_of_all_nodes). Raises kinds of RuntimeError; see partitioning/errors.py.

        torch.fx's own PartitionerConfig, Device and NodeLatency are taken as well.
        """
        config = own_config(partitioner_config)
        check_devices(config.devices)
        self.devices, self.partitions = list(config.devices), []
        self.graph_module, self.torch_module = fx_module, torch_module
        self._program = _numbered(fx_module)
        try:
            self._partition(config)
            if config.saturate_host:
                self.saturate_host()
            split = self.do_partition()
            return PartitionResult(self.dump_dag(split), split)
        finally:
            self._program = None

    def find_single_partition(self, total_size_of_graph: int, logical_device_id: int = 0) -> None:
        """The whole graph on one device."""
        self._keep([single_partition(self._numbers(), total_size_of_graph, logical_device_id)])

    def size_based_partition(self) -> None:
        """Devices are filled in list order."""
        self._choose(PartitionerConfig(self.devices, PartitionMode.size_based))

    def sparse_nn_partition(self, available_mem_bytes: int) -> None:
        """Tables are spread over the devices, and the rest is beside each. Devices may be unequal: no size is read."""
        self._choose(PartitionerConfig(self.devices, PartitionMode.sparse_nn))

    def cost_aware_partition(
        self, transfer_rate_bytes_per_sec: float, node_to_latency_mapping: Mapping[Node, NodeLatency]
    ) -> None:
        """The least latency of the whole graph that a search from single operations finds."""
        mode = PartitionMode.cost_aware
        self._choose(PartitionerConfig(self.devices, mode, transfer_rate_bytes_per_sec, node_to_latency_mapping))

    def kl_based_partition(
        self, transfer_rate_bytes_per_sec: float, node_to_latency_mapping: Mapping[Node, NodeLatency]
    ) -> None:
        """The same from the size-based partitions."""
        mode = PartitionMode.kl_based
        self._choose(PartitionerConfig(self.devices, mode, transfer_rate_bytes_per_sec, node_to_latency_mapping))

    def aot_based_partition(
        self,
        node_to_partition_mapping: Mapping[Node, int],
        partition_to_logical_device_mapping: Mapping[int, list[int]],
    ) -> None:
        """Partitions and devices as given, checked."""
        config = PartitionerConfig(
            self.devices,
            PartitionMode.aot_based,
            node_to_partition_mapping=node_to_partition_mapping,
            partition_to_logical_device_mapping=partition_to_logical_device_mapping,
        )
        self._keep(partitions_as_given(self._numbers(), config))

    def create_partition(self) -> Partition:
        """An empty one, the last of `partitions`, with their number as its id."""
        partition = Partition(len(self.partitions))
        self.partitions.append(partition)
        return partition

    def create_single_node_partition(self, node: Node) -> None:
        self.create_partition().add_node(node)

    def saturate_host(self) -> None:
        """Idle devices run copies of all partitions, as far as they suffice."""
        saturate(self.partitions, self.devices)

    def do_partition(self) -> fx.GraphModule:
        """`graph_module` split as `node_to_partition` says."""
        # Submodules are compiled when they first run: that takes as long as all the rest.
        with _use_lazy_graph_module(True):
            return split_module(self.graph_module, self.torch_module, self.node_to_partition.__getitem__)

    def dump_dag(self, module_with_submodules: fx.GraphModule) -> DAG:
        """Of what do_partition gave, with the devices and bytes of `partitions`."""
        return dag_of(module_with_submodules, {partition.partition_id: partition for partition in self.partitions})

    def _partition(self, config: PartitionerConfig) -> None:
        program = self._numbers()
        if config.mode is PartitionMode.aot_based:
            self.aot_based_partition(config.node_to_partition_mapping, config.partition_to_logical_device_mapping)
            return
        # Of equals, the first.
        largest = max(self.devices, key=lambda device: device.available_mem_bytes)
        total_bytes = sum(program.graph.total_bytes)
        if total_bytes <= largest.available_mem_bytes:
            self.find_single_partition(total_bytes, largest.logical_id)
        elif config.mode is PartitionMode.size_based:
            self.size_based_partition()
        elif config.mode is PartitionMode.sparse_nn:
            self.sparse_nn_partition(largest.available_mem_bytes)
        elif config.mode is PartitionMode.cost_aware:
            self.cost_aware_partition(config.transfer_rate_bytes_per_sec, config.node_to_latency_mapping)
        else:
            self.kl_based_partition(config.transfer_rate_bytes_per_sec, config.node_to_latency_mapping)

    def _choose(self, config: PartitionerConfig) -> None:
        self._keep(choose_partitions(self._numbers(), self.graph_module, config))

    def _keep(self, partitions: list[Partition]) -> None:
        set_parents_and_children(partitions)
        get_bfs_level_partition(partitions)
        self.partitions = partitions
        self.node_to_partition = get_node_to_partition_mapping(partitions)

    def _numbers(self) -> NumberedGraph:
        return self._program or _numbered(self.graph_module)


def _numbered(fx_module: fx.GraphModule) -> NumberedGraph:
    nodes = nodes_before_output(fx_module.graph)
    if all(node.op in GIVEN for node in nodes):
        raise NothingToPartition("No Partition since no operations in the module")
    return numbered(nodes, sizes_of_nodes(fx_module, nodes), effect_pairs(fx_module))
