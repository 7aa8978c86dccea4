"""A lone batch's seconds as torch.fx predicts them: longest paths, in groups and over groups, in linear time.

Within a group everything that can runs at the same time, and so do groups, even on one device. From one group to
another costs the bytes of the distinct nodes there that this one reads, unless both are on the same devices.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from planner.fx_compat.byte_model.operation_graph import Group, OperationGraph


@dataclass(frozen=True, slots=True, kw_only=True)
class PathSeconds:
    """`overall` sums each operation's slower part along the longest path; the others sum the parts along the same."""

    memory: float = 0.0
    compute: float = 0.0
    overall: float = 0.0


def longest_path_inside(
    graph: OperationGraph, group: Group, memory_seconds: Mapping[int, float], compute_seconds: Mapping[int, float]
) -> PathSeconds:
    """Linear in the group's inputs. Of equal paths, the one that ends and turns at the earlier nodes."""
    at: dict[int, PathSeconds] = {}
    longest = PathSeconds()
    for node in sorted(group):
        if not graph.is_operation[node]:
            continue
        before = PathSeconds()
        for source in graph.inputs[node]:
            if source in at and at[source].overall > before.overall:
                before = at[source]
        memory, compute = memory_seconds[node], compute_seconds[node]
        at[node] = PathSeconds(
            memory=before.memory + memory,
            compute=before.compute + compute,
            overall=before.overall + max(memory, compute),
        )
        if at[node].overall > longest.overall:
            longest = at[node]
    return longest


def transfer_bytes(graph: OperationGraph, parent: Group, child: Group) -> int:
    """Distinct nodes of the parent, its givens too, that the child's nodes read."""
    read = {source for node in child for source in graph.inputs[node] if source in parent}
    return sum(graph.out_bytes[source] for source in read)


def transfer_seconds(size_bytes: int, bytes_per_second: float) -> float:
    """Infinite over a link that carries nothing, unless there is nothing to carry."""
    if bytes_per_second:
        return size_bytes / bytes_per_second
    return math.inf if size_bytes else 0.0


def longest_path_over(
    order: Sequence[int],
    children: Sequence[Sequence[int]],
    seconds: Sequence[float],
    edge_seconds: Mapping[tuple[int, int], float],
) -> float:
    """`order`: groups, each before its children. Linear in edges."""
    before = [0.0] * len(seconds)
    longest = 0.0
    for group in order:
        done = before[group] + seconds[group]
        longest = max(longest, done)
        for child in children[group]:
            arrival = done + edge_seconds[group, child]
            if arrival > before[child]:
                before[child] = arrival
    return longest
