"""From operations on devices to groups that run one after another: as few as keep the latency and have no cycle."""

from __future__ import annotations

from collections.abc import Sequence

from planner.fx_compat.byte_model.critical_path import (
    longest_path_over,
    transfer_bytes,
    transfer_seconds,
)
from planner.fx_compat.byte_model.first_fit import PlacedGroups
from planner.fx_compat.byte_model.grouping import children_of_groups, running_order
from planner.fx_compat.byte_model.operation_graph import OperationGraph


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


def groups_of_one(graph: OperationGraph, device_of_node: Sequence[int]) -> PlacedGroups:
    return _placed(graph, {(node, device_of_node[node]): [node] for node in graph.operations})


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
        for parent, own in enumerate(children)
        for child in own
    }
    return longest_path_over(order, children, inside, edges)


def _longest_inside(graph: OperationGraph, seconds: Sequence[float], group: frozenset[int]) -> float:
    done: dict[int, float] = {}
    for node in sorted(group):
        if graph.is_operation[node]:
            done[node] = max((done[at] for at in graph.inputs[node] if at in done), default=0.0) + seconds[node]
    return max(done.values(), default=0.0)
