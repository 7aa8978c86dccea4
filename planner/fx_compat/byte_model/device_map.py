"""Devices for groups that have none: each to the fullest device that still has room, as torch.fx does it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from planner.fx_compat.byte_model.first_fit import PlacedGroups
from planner.fx_compat.byte_model.operation_graph import Group, OperationGraph

Devices = tuple[int, ...]


def map_groups(
    graph: OperationGraph,
    groups: Sequence[Group],
    used_bytes: Sequence[int],
    devices: Sequence[Devices],
    capacities: Sequence[int],
) -> tuple[list[Devices], bool]:
    """Groups in order; devices by room left, ascending. False, with what was found so far, where a group fits nowhere.

    A group takes `used_bytes` of an empty device, and of another what its nodes need beside all that is there. As
    torch.fx has it, that must be less than the room that is left.
    """
    devices_of_group = list(devices)
    nodes_of_device: list[set[int]] = [set() for _ in capacities]
    empty = [True] * len(capacities)
    left = list(capacities)
    for group, used, at in zip(groups, used_bytes, devices, strict=True):
        for device in at:
            nodes_of_device[device] |= group
            empty[device] = False
            left[device] -= used
    order = list(range(len(capacities)))
    for index, group in enumerate(groups):
        if devices_of_group[index]:
            continue
        # Sorted anew each time from the last order: that settles ties.
        order.sort(key=left.__getitem__)
        for device in order:
            needed = used_bytes[index] if empty[device] else _needed_beside(graph, group, nodes_of_device[device])
            if needed < left[device]:
                break
        else:
            return devices_of_group, False
        devices_of_group[index] = (device,)
        nodes_of_device[device] |= group
        empty[device] = False
        left[device] -= needed
    return devices_of_group, True


def _needed_beside(graph: OperationGraph, group: Group, nodes_there: set[int]) -> int:
    return sum(
        graph.total_bytes[node]
        + sum(
            graph.out_bytes[source]
            for source in graph.inputs[node]
            if source not in nodes_there and source not in group
        )
        for node in group
    )


def map_placed(graph: OperationGraph, placed: PlacedGroups, capacities: Sequence[int]) -> PlacedGroups | None:
    used = [graph.group_bytes(group) for group in placed.groups]
    devices, complete = map_groups(graph, placed.groups, used, placed.devices, capacities)
    return PlacedGroups(groups=placed.groups, devices=tuple(devices)) if complete else None


def fuller_map(
    graph: OperationGraph, groups: Sequence[Group], devices: Sequence[Devices], capacities: Sequence[int]
) -> list[Devices] | None:
    """Where `map_groups` ends early: devices filled to the last byte, groups also from the largest, and in turn also to
    the emptiest device or to where they add least."""
    sizes = [graph.group_bytes(group) for group in groups]
    listed = range(len(groups))
    for order in (listed, sorted(listed, key=lambda index: (-sizes[index], index))):
        for rule in (_fullest, _emptiest, _least_added):
            mapped = _map_by(graph, groups, devices, capacities, order, rule)
            if mapped is not None:
                return mapped
    return None


def _fullest(left: int, needed: int) -> int:
    return left


def _emptiest(left: int, needed: int) -> int:
    return -left


def _least_added(left: int, needed: int) -> int:
    return needed


def _map_by(
    graph: OperationGraph,
    groups: Sequence[Group],
    devices: Sequence[Devices],
    capacities: Sequence[int],
    order: Iterable[int],
    rule: Callable[[int, int], int],
) -> list[Devices] | None:
    devices_of_group = list(devices)
    nodes_of_device: list[set[int]] = [set() for _ in capacities]
    for group, at in zip(groups, devices, strict=True):
        for device in at:
            nodes_of_device[device] |= group
    left = [room - graph.group_bytes(group) for room, group in zip(capacities, nodes_of_device, strict=True)]
    for index in order:
        if devices_of_group[index]:
            continue
        choices = []
        for device, room in enumerate(left):
            needed = capacities[device] - room
            added = graph.group_bytes(nodes_of_device[device] | groups[index]) - needed
            if added <= room:
                choices.append((rule(room, added), device, added))
        if not choices:
            return None
        _, device, added = min(choices)
        devices_of_group[index] = (device,)
        nodes_of_device[device] |= groups[index]
        left[device] -= added
    return devices_of_group
