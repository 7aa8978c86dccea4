"""Devices of partitions, by torch.fx's names: which hold what, and a device for each partition that has none."""

from __future__ import annotations

from planner.fx_compat.byte_model.device_map import fuller_map, map_groups
from planner.fx_compat.partitioning.config import Device
from planner.fx_compat.partitioning.errors import BadMapping
from planner.fx_compat.partitioning.numbers import NumberedGraph, numbered_partitions
from planner.fx_compat.partitioning.record import Partition


def get_logical_id_to_device(devices: list[Device]) -> dict[int, Device]:
    return {device.logical_id: device for device in devices}


def get_device_partition_stats(
    partitions: list[Partition], devices: list[Device]
) -> tuple[dict[Device, list[Partition]], dict[Device, int], list[Partition]]:
    """(partitions by device, bytes left by device, partitions that have no device)."""
    by_id = get_logical_id_to_device(devices)
    partitions_by_device: dict[Device, list[Partition]] = {device: [] for device in devices}
    bytes_left = {device: device.available_mem_bytes for device in devices}
    homeless = []
    for partition in partitions:
        for logical_id in partition.logical_device_ids:
            device = _device(by_id, logical_id, partition)
            partitions_by_device[device].append(partition)
            bytes_left[device] -= partition.used_mem_bytes
        if not partition.logical_device_ids:
            homeless.append(partition)
    return partitions_by_device, bytes_left, homeless


def _device(by_id: dict[int, Device], logical_id: int, partition: Partition) -> Device:
    if logical_id not in by_id:
        logical_ids = ", ".join(map(str, sorted(by_id)))
        raise BadMapping(
            f"partition {partition} is on device {logical_id}, which is not among the logical ids {logical_ids}",
            partition=partition,
            device=logical_id,
        )
    return by_id[logical_id]


def get_device_to_partitions_mapping(partitions: list[Partition], devices: list[Device]) -> bool:
    """Gives each partition that has none the fullest device with room, as torch.fx does; where that ends before all
    have one, in other orders and up to the last byte. False, and what torch.fx found, if that fails too."""
    return map_partitions(numbered_partitions(partitions), partitions, devices)


def map_partitions(graph: NumberedGraph, partitions: list[Partition], devices: list[Device]) -> bool:
    position = {logical_id: index for index, logical_id in enumerate(get_logical_id_to_device(devices))}
    by_id = get_logical_id_to_device(devices)
    groups = [graph.numbers(partition.nodes) for partition in partitions]
    used = [partition.used_mem_bytes for partition in partitions]
    device_positions = [
        tuple(position[_device(by_id, logical_id, partition).logical_id] for logical_id in partition.logical_device_ids)
        for partition in partitions
    ]
    room = [device.available_mem_bytes for device in by_id.values()]
    devices_of_partition, complete = map_groups(graph.graph, groups, used, device_positions, room)
    fuller = None if complete else fuller_map(graph.graph, groups, device_positions, room)
    ids = list(by_id)
    for partition, before, after in zip(partitions, device_positions, fuller or devices_of_partition, strict=True):
        if not before:
            partition.logical_device_ids.extend(ids[device] for device in after)
    return complete or fuller is not None
