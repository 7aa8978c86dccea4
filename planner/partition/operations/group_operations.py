"""From operations on devices to groups that run one after another: as few as keep the latency and have no cycle."""

from __future__ import annotations

from collections.abc import Sequence

from planner.partition.operations.critical_path import (
    longest_path_over,
    transfer_bytes,
    transfer_seconds,
)
from planner.partition.operations.first_fit import PlacedGroups
from planner.partition.operations.grouping import children_of_groups, running_order
from planner.partition.operations.operation_graph import OperationGraph

# Joining groups pair by pair asks for the latency each time; longer programs keep the groups that levels give.
_MAX_JOINED = 200


def groups_by_level(graph: OperationGraph, device_of_node: Sequence[int]) -> PlacedGroups:
    """Operations of one device with equally many changes of device on the way to them. Linear, and free of cycles."""
    level = [0] * len(device_of_node)
    before: dict[int, list[int]] = {}
    for earlier, later in graph.after:
        before.setdefault(later, []).append(earlier)
    members: dict[tuple[int, int], list[int]] = {}
    for node in graph.operations:
        for source in (*graph.inputs[node], *before.get(node, ())):
            if graph.is_operation[source]:
                level[node] = max(level[node], level[source] + (device_of_node[source] != device_of_node[node]))
        members.setdefault((level[node], device_of_node[node]), []).append(node)
    return _placed(graph, members)


def connected_groups(graph: OperationGraph, placed: PlacedGroups) -> PlacedGroups:
    """The same groups, in parts that no value joins."""
    members: dict[tuple[int, int], list[int]] = {}
    for group, devices in zip(placed.groups, placed.devices, strict=True):
        inside = sorted(node for node in group if graph.is_operation[node])
        first = {node: node for node in inside}
        for node in inside:
            for source in graph.inputs[node]:
                if source in first:
                    one, other = sorted((_root(first, source), _root(first, node)))
                    first[other] = one
        for node in inside:
            members.setdefault((_root(first, node), devices[0]), []).append(node)
    return _placed(graph, members)


def _root(first: dict[int, int], node: int) -> int:
    while first[node] != node:
        first[node] = first[first[node]]
        node = first[node]
    return node


def _placed(graph: OperationGraph, members: dict[tuple[int, int], list[int]]) -> PlacedGroups:
    parts = sorted((nodes, device) for (_, device), nodes in members.items())
    return PlacedGroups(
        groups=tuple(frozenset(graph.with_givens(nodes)) for nodes, _ in parts),
        devices=tuple((device,) for _, device in parts),
    )


def grouped_latency(
    graph: OperationGraph, seconds: Sequence[float], bytes_per_second: float, placed: PlacedGroups
) -> float:
    """Infinite where the groups have a cycle."""
    children = children_of_groups(graph, placed.groups, with_order=True)
    order = running_order(children)
    if len(order) < len(placed.groups):
        return float("inf")
    inside = [_longest_inside(graph, seconds, group) for group in placed.groups]
    edges = {
        (parent, child): 0.0
        if placed.devices[parent] == placed.devices[child]
        else transfer_seconds(transfer_bytes(graph, placed.groups[parent], placed.groups[child]), bytes_per_second)
        for parent, found in enumerate(children)
        for child in found
    }
    return longest_path_over(order, children, inside, edges)


def _longest_inside(graph: OperationGraph, seconds: Sequence[float], group: frozenset[int]) -> float:
    done: dict[int, float] = {}
    for node in sorted(group):
        if graph.is_operation[node]:
            done[node] = max((done[at] for at in graph.inputs[node] if at in done), default=0.0) + seconds[node]
    return max(done.values(), default=0.0)


def joined_groups(
    graph: OperationGraph,
    seconds: Sequence[float],
    bytes_per_second: float,
    device_of_node: Sequence[int],
    latency: float,
) -> PlacedGroups | None:
    """From single operations, neighbours on one device join while the latency stays. None for a long program."""
    nodes = graph.operations
    if len(nodes) > _MAX_JOINED:
        return None
    placed = _placed(graph, {(node, device_of_node[node]): [node] for node in nodes})
    for node in nodes:
        for source in graph.inputs[node]:
            if not graph.is_operation[source] or device_of_node[source] != device_of_node[node]:
                continue
            joined = _join(graph, placed, source, node)
            if joined and grouped_latency(graph, seconds, bytes_per_second, joined) <= latency:
                placed = joined
    return placed


def _join(graph: OperationGraph, placed: PlacedGroups, one: int, other: int) -> PlacedGroups | None:
    holding = [index for index, group in enumerate(placed.groups) if one in group or other in group]
    if len(holding) < 2:
        return None
    kept, gone = holding
    groups = [group for index, group in enumerate(placed.groups) if index != gone]
    groups[kept] = placed.groups[kept] | placed.groups[gone]
    devices = tuple(at for index, at in enumerate(placed.devices) if index != gone)
    return PlacedGroups(groups=tuple(groups), devices=devices)
