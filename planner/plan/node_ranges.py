"""Nodes of stages as half-open ranges of indexes: how a plan writes them down."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

Ranges = tuple[tuple[int, int], ...]


def node_ranges(stage_of_node: Sequence[int], num_stages: int) -> tuple[Ranges, ...]:
    """Each stage's nodes, ascending."""
    nodes: list[list[int]] = [[] for _ in range(num_stages)]
    for node, stage in enumerate(stage_of_node):
        nodes[stage].append(node)
    return tuple(ranges_of(members) for members in nodes)


def ranges_of(nodes: Iterable[int]) -> Ranges:
    """Of node indexes in ascending order."""
    ranges: list[tuple[int, int]] = []
    for node in nodes:
        start = ranges.pop()[0] if ranges and ranges[-1][1] == node else node
        ranges.append((start, node + 1))
    return tuple(ranges)


def nodes_in(ranges: Ranges) -> tuple[int, ...]:
    """The inverse of ranges_of."""
    return tuple(node for start, end in ranges for node in range(start, end))
