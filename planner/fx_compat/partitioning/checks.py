"""What a partitioner is asked to do, checked before anything is decided, with messages that name what is wrong."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from torch.fx import Node

from planner.fx_compat.byte_model.grouping import children_of_groups
from planner.fx_compat.byte_model.operation_graph import Group, OperationGraph
from planner.fx_compat.partitioning.config import Device, NodeLatency, PartitionerConfig
from planner.fx_compat.partitioning.errors import BadMapping, DevicesTooSmall, NoDevices, NothingToPartition
from planner.graph.cycle import find_cycle


def check_devices(devices: Sequence[Device]) -> None:
    if not devices:
        raise NoDevices("No devices: the partitioner's config lists none; give at least one")
    seen: dict[int, str] = {}
    for device in devices:
        if not math.isfinite(device.available_mem_bytes) or device.available_mem_bytes < 0:
            raise NoDevices(f"device {device.name!r} has {device.available_mem_bytes} bytes, needs a number from 0")
        if device.logical_id in seen:
            raise NoDevices(
                f"devices {seen[device.logical_id]!r} and {device.name!r} both have logical id {device.logical_id}; "
                f"give each its own",
                logical_id=device.logical_id,
            )
        seen[device.logical_id] = device.name


def operation_seconds(nodes: Sequence[Node], latencies: Mapping[Node, NodeLatency]) -> list[float]:
    """By node, 0 for placeholders and attributes. Every operation needs an entry."""
    seconds = []
    for node in nodes:
        if node.op in ("placeholder", "get_attr"):
            seconds.append(0.0)
            continue
        latency = latencies.get(node)
        if latency is None:
            raise NothingToPartition(
                f"node {node.name!r} has no entry in node_to_latency_mapping; this mode needs one for every operation",
                node=node.name,
            )
        if not all(math.isfinite(part) and part >= 0 for part in latency):
            raise NothingToPartition(f"node {node.name!r} takes {tuple(latency)} seconds, needs finite numbers from 0")
        seconds.append(float(max(latency)))
    return seconds


def check_transfer_rate(rate: float) -> None:
    if not rate > 0:
        raise BadMapping(
            f"transfer_rate_bytes_per_sec is {rate}; modes cost_aware and kl_based need a rate above 0 to tell what "
            f"a transfer takes"
        )


def check_given_partitions(config: PartitionerConfig, nodes: Sequence[Node]) -> None:
    """Every operation has a partition, every partition has devices, and all of them are known."""
    logical_ids = {device.logical_id for device in config.devices}
    lacking = [
        node.name
        for node in nodes
        if node.op not in ("placeholder", "get_attr") and node not in config.node_to_partition_mapping
    ]
    if lacking:
        raise BadMapping(
            f"node_to_partition_mapping has no partition for {len(lacking)} operations: {', '.join(lacking[:10])}",
            nodes=", ".join(lacking[:10]),
        )
    present = set(nodes)
    for node in config.node_to_partition_mapping:
        if node not in present:
            raise BadMapping(f"node_to_partition_mapping has node {node.name!r}, which is not of this graph")
    for partition_id in dict.fromkeys(config.node_to_partition_mapping.values()):
        devices = config.partition_to_logical_device_mapping.get(partition_id)
        if not devices:
            raise BadMapping(
                f"partition {partition_id} has no device in partition_to_logical_device_mapping; give at least one",
                partition=partition_id,
            )
        unknown = [device for device in devices if device not in logical_ids]
        if unknown:
            raise BadMapping(
                f"partition {partition_id} is mapped to device {unknown[0]}, which is not among the config's logical "
                f"ids {', '.join(map(str, sorted(logical_ids)))}",
                partition=partition_id,
                device=unknown[0],
            )


def check_runs(graph: OperationGraph, groups: Sequence[Group], names: Sequence[object]) -> None:
    children = children_of_groups(graph, groups)
    cycle = find_cycle(len(groups), ((group, child) for group, own in enumerate(children) for child in own))
    if cycle:
        first = cycle.index(min(cycle))
        named = " -> ".join(str(names[index]) for index in (*cycle[first:], *cycle[: first + 1]))
        raise BadMapping(
            f"partitions depend on each other in a circle: {named}; move their nodes into one", cycle=named
        )


def check_room(
    graph: OperationGraph, groups: Sequence[Group], devices: Sequence[Sequence[int]], by_id: Mapping[int, Device]
) -> None:
    """`devices`: logical ids by group. What a device holds counts once, whichever groups read it."""
    nodes_by_device: dict[int, set[int]] = {}
    for group, logical_ids in zip(groups, devices, strict=True):
        for logical_id in logical_ids:
            nodes_by_device.setdefault(logical_id, set()).update(group)
    for logical_id, nodes in nodes_by_device.items():
        needed, room = graph.group_bytes(nodes), by_id[logical_id].available_mem_bytes
        if needed > room:
            raise DevicesTooSmall(
                f"the partitions on device {by_id[logical_id].name!r} ({logical_id}) need {needed} bytes, it has "
                f"{room}: {needed - room} are lacking",
                device=logical_id,
                needed_bytes=needed,
                lacking_bytes=needed - room,
            )
