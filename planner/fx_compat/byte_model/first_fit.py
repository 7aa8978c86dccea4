"""Size-based partitions: devices are opened in list order and filled in program order, as torch.fx does it.

The first operation opens the first device that can hold it. A later one that exceeds what is left opens the first
unused device that can hold it. Where every device is in use, it and all that follow become groups of one, without a
device.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from planner.fx_compat.byte_model.operation_graph import OperationGraph


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedGroups:
    """`devices` [groups]: indexes of the devices that hold each group, empty where none is found."""

    groups: tuple[frozenset[int], ...]
    devices: tuple[tuple[int, ...], ...]


def first_fit(graph: OperationGraph, capacities: Sequence[int]) -> PlacedGroups | None:
    """None if an operation fits none of the devices that are unused when it comes. Linear in inputs x devices."""
    groups: list[set[int]] = []
    devices: list[tuple[int, ...]] = []
    unused = list(range(len(capacities)))
    left, full = 0, False
    for node in graph.operations:
        needed = graph.extra_bytes(node, groups[-1] if groups else ())
        if full or (groups and left < needed and len(groups) == len(capacities)):
            full = True
            groups.append(graph.with_givens((node,)))
            devices.append(())
            continue
        if not groups or left < needed:
            needed = graph.extra_bytes(node, ())
            device = next((device for device in unused if capacities[device] >= needed), None)
            if device is None:
                return None
            unused.remove(device)
            groups.append(set())
            devices.append((device,))
            left = capacities[device]
        groups[-1] |= graph.with_givens((node,))
        left -= needed
    return PlacedGroups(groups=tuple(map(frozenset, groups)), devices=tuple(devices))
