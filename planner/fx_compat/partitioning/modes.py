"""The partitions of each mode of torch.fx's partitioner: how one is chosen, and its groups as partitions."""

from __future__ import annotations

from collections.abc import Sequence

from torch import fx

from planner.fx_compat.byte_model.first_fit import PlacedGroups
from planner.fx_compat.byte_model.least_latency import least_latency_groups
from planner.fx_compat.byte_model.size_groups import size_groups, torch_size_groups
from planner.fx_compat.byte_model.sparse_groups import sparse_groups
from planner.fx_compat.partitioning.checks import (
    check_given_partitions,
    check_room,
    check_runs,
    check_transfer_rate,
    operation_seconds,
)
from planner.fx_compat.partitioning.config import Device, PartitionerConfig, PartitionMode
from planner.fx_compat.partitioning.devices import get_device_partition_stats
from planner.fx_compat.partitioning.embeddings import embedding_nodes
from planner.fx_compat.partitioning.errors import DevicesTooSmall
from planner.fx_compat.partitioning.numbers import NumberedGraph
from planner.fx_compat.partitioning.record import Partition
from planner.fx_compat.partitioning.sizes import NodeBytes
from planner.partition.saturate_host import replicas_of_devices

# How many visits of operations a search may make, by operation: of short programs, and of others.
_SHORT = 32
_COST_AWARE_STEPS = (1500, 200)
_KL_STEPS = (100, 20)


def partitions_as_given(program: NumberedGraph, config: PartitionerConfig) -> list[Partition]:
    """In the order in which the mapping first names them, under the ids that it gives."""
    check_given_partitions(config, program.nodes)
    members: dict[int, list[int]] = {}
    for node, partition_id in config.node_to_partition_mapping.items():
        members.setdefault(partition_id, []).append(program.index[node])
    groups = [frozenset(program.graph.with_givens(nodes)) for nodes in members.values()]
    devices = [list(config.partition_to_logical_device_mapping[partition_id]) for partition_id in members]
    check_runs(program.graph, groups, list(members))
    check_room(program.graph, groups, devices, {device.logical_id: device for device in config.devices})
    partitions = []
    for partition_id, group, at in zip(members, groups, devices, strict=True):
        partitions.append(_partition(program, partition_id, group, at))
    return partitions


def single_partition(program: NumberedGraph, used_bytes: int, logical_id: int) -> Partition:
    everything = _partition(program, 0, frozenset(range(len(program.nodes))), [logical_id])
    everything.used_mem_bytes = used_bytes
    return everything


def choose_partitions(program: NumberedGraph, fx_module: fx.GraphModule, config: PartitionerConfig) -> list[Partition]:
    """What the mode finds."""
    capacities = [device.available_mem_bytes for device in config.devices]
    needed = program.graph.least_bytes()
    if needed > sum(capacities):
        raise DevicesTooSmall(
            f"Devices do not have enough memory for the module: it needs {needed} bytes, all {len(capacities)} devices "
            f"have {sum(capacities)}; {needed - sum(capacities)} are lacking",
            needed_bytes=needed,
            lacking_bytes=needed - sum(capacities),
        )
    placed = _placed_by_mode(program, fx_module, config, capacities)
    if placed is None:
        raise _nothing_fits(program, capacities, config.mode)
    return [
        _partition(program, index, group, [config.devices[device].logical_id for device in devices])
        for index, (group, devices) in enumerate(zip(placed.groups, placed.devices, strict=True))
    ]


def _placed_by_mode(
    program: NumberedGraph, fx_module: fx.GraphModule, config: PartitionerConfig, capacities: Sequence[int]
) -> PlacedGroups | None:
    if config.mode in (PartitionMode.cost_aware, PartitionMode.kl_based):
        check_transfer_rate(config.transfer_rate_bytes_per_sec)
        seconds = operation_seconds(program.nodes, config.node_to_latency_mapping)
        kl_based = config.mode is PartitionMode.kl_based
        steps = (_KL_STEPS if kl_based else _COST_AWARE_STEPS)[len(program.nodes) > _SHORT]
        start = torch_size_groups(program.graph, capacities) if kl_based else None
        return least_latency_groups(
            program.graph,
            seconds,
            config.transfer_rate_bytes_per_sec,
            capacities,
            [start] if start else [],
            len(program.nodes) * steps,
        )
    if config.mode is PartitionMode.sparse_nn:
        embeddings = embedding_nodes(program, fx_module)
        # With no embeddings there is nothing to spread: what is left is to place by size.
        if embeddings:
            return sparse_groups(program.graph, embeddings, capacities)
    return size_groups(program.graph, capacities)


def _partition(program: NumberedGraph, partition_id: int, group: frozenset[int], logical_ids: list[int]) -> Partition:
    numbers = program.graph
    sizes = {
        program.nodes[node]: NodeBytes(numbers.out_bytes[node], numbers.total_bytes[node])
        for node in {*group, *(source for node in group for source in numbers.inputs[node])}
    }
    partition = Partition(partition_id, sizes)
    partition.nodes = {program.nodes[node] for node in group}
    partition.used_mem_bytes = numbers.group_bytes(group)
    partition.logical_device_ids = logical_ids
    return partition


def _nothing_fits(program: NumberedGraph, capacities: Sequence[int], mode: PartitionMode) -> DevicesTooSmall:
    graph = program.graph
    node = max(graph.operations, key=lambda one: (graph.extra_bytes(one, ()), -one))
    needed = graph.extra_bytes(node, ())
    name = program.nodes[node].name
    if needed > max(capacities):
        return DevicesTooSmall(
            f"mode {mode.name}: {name} is too large to fit any device: it needs {needed} bytes with its inputs, the "
            f"largest device has {max(capacities)}",
            node=name,
            needed_bytes=needed,
            lacking_bytes=needed - max(capacities),
        )
    return DevicesTooSmall(
        f"mode {mode.name}: no placement of the module's {graph.least_bytes()} bytes on {len(capacities)} devices with "
        f"{sum(capacities)} bytes in all was found, since a tensor that passes between devices takes room on both; add "
        f"a device or memory"
    )


def saturate(partitions: Sequence[Partition], devices: list[Device]) -> None:
    """Adds copies' logical ids to each partition's, as long as idle devices suffice."""
    partitions_by_device, bytes_left, _ = get_device_partition_stats(list(partitions), devices)
    capacities = [device.available_mem_bytes for device in devices]
    needed = [
        device.available_mem_bytes - bytes_left[device] if partitions_by_device[device] else -1 for device in devices
    ]
    copies = replicas_of_devices(capacities, needed)
    for device, added in zip(devices, copies, strict=True):
        for partition in partitions_by_device[device]:
            partition.logical_device_ids.extend(devices[other].logical_id for other in added)
