"""Groups by size: torch.fx's first fit, and another placement where that one ends without a device for all."""

from __future__ import annotations

from collections.abc import Sequence

from planner.fx_compat.byte_model.device_map import fuller_map, map_placed
from planner.fx_compat.byte_model.exhaustive_packing import any_fit
from planner.fx_compat.byte_model.first_fit import PlacedGroups, first_fit
from planner.fx_compat.byte_model.group_operations import groups_by_level
from planner.fx_compat.byte_model.operation_graph import OperationGraph
from planner.fx_compat.byte_model.transfer_problem import transfer_problem


def torch_size_groups(graph: OperationGraph, capacities: Sequence[int]) -> PlacedGroups | None:
    """None where torch.fx has none."""
    groups = first_fit(graph, capacities)
    return map_placed(graph, groups, capacities) if groups else None


def size_groups(graph: OperationGraph, capacities: Sequence[int]) -> PlacedGroups | None:
    """torch.fx's; else its groups on fuller devices; else any placement that fits."""
    groups = first_fit(graph, capacities)
    if groups is not None:
        mapped = map_placed(graph, groups, capacities)
        if mapped is not None:
            return mapped
        fuller = fuller_map(graph, groups.groups, groups.devices, capacities)
        if fuller is not None:
            return PlacedGroups(groups=groups.groups, devices=tuple(fuller))
    problem = transfer_problem(graph, [0.0] * len(graph.inputs), 1.0, capacities)
    device = any_fit(problem)
    if device is None:
        return None
    device_of_node = [0] * len(graph.inputs)
    for node, at in zip(problem.nodes, device, strict=True):
        device_of_node[node] = at
    return groups_by_level(graph, device_of_node)
