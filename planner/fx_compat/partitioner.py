"""torch.fx's accelerator partitioner, by its names and signatures, on this planner's algorithms.

Modes, sizes and latencies mean what they mean in torch.fx.experimental; results of the single, size-based, sparse and
given partitions are the same wherever torch's are sound. What differs: a program that fits is not refused; devices may
be filled to the last byte and be unequal; given partitions are checked; moves that are found reach the module; several
outputs of one node are sized; writes in place and random draws keep their order; the caller's graph is only read.
"""

from __future__ import annotations

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
from planner.fx_compat.partitioning.modes import choose_partitions, partitions_as_given, saturate
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
    """

    def __init__(self) -> None:
        self.partitions: list[Partition] = []
        self.node_to_partition: dict[Node, int] = {}
        self.devices: list[Device] = []

    def partition_graph(
        self, fx_module: fx.GraphModule, torch_module: torch.nn.Module, partitioner_config: PartitionerConfig
    ) -> PartitionResult:
        """The nodes need shapes (see get_size_of_all_nodes). Raises kinds of RuntimeError; see partitioning/errors.py.

        torch.fx's own PartitionerConfig, Device and NodeLatency are taken as well.
        """
        config = own_config(partitioner_config)
        check_devices(config.devices)
        self.devices = list(config.devices)
        program = _numbered(fx_module)
        if config.mode is PartitionMode.aot_based:
            partitions = partitions_as_given(program, config)
        else:
            partitions = choose_partitions(program, fx_module, config)
        set_parents_and_children(partitions)
        get_bfs_level_partition(partitions)
        if config.saturate_host:
            saturate(partitions, self.devices)
        self.partitions = partitions
        self.node_to_partition = get_node_to_partition_mapping(partitions)
        # Submodules are compiled when they first run: that takes as long as all the rest.
        with _use_lazy_graph_module(True):
            split = split_module(fx_module, torch_module, self.node_to_partition.__getitem__)
        dag = dag_of(split, {partition.partition_id: partition for partition in partitions})
        return PartitionResult(dag, split)


def _numbered(fx_module: fx.GraphModule) -> NumberedGraph:
    nodes = nodes_before_output(fx_module.graph)
    if all(node.op in GIVEN for node in nodes):
        raise NothingToPartition("No Partition since no operations in the module")
    return numbered(nodes, sizes_of_nodes(fx_module, nodes), effect_pairs(fx_module))
