"""Groups of operations as a graph of their own: which reads from which, and an order to run them in."""

from __future__ import annotations

from collections.abc import Sequence

from planner.fx_compat.byte_model.operation_graph import Group, OperationGraph
from planner.partition.arcs import least_first_order


def children_of_groups(
    graph: OperationGraph, groups: Sequence[Group], *, with_order: bool = False
) -> tuple[tuple[int, ...], ...]:
    """By group: the others that read from it, ascending. What a group holds itself it does not read from another.

    `with_order`: and those whose effects come after its own.
    """
    holders: dict[int, list[int]] = {}
    for index, group in enumerate(groups):
        for node in group:
            holders.setdefault(node, []).append(index)
    children: list[set[int]] = [set() for _ in groups]
    for source, parents in holders.items():
        for user in graph.users[source]:
            for child in holders.get(user, ()):
                if source not in groups[child]:
                    for parent in parents:
                        children[parent].add(child)
    for earlier, later in graph.after if with_order else ():
        for parent in holders.get(earlier, ()):
            children[parent].update(child for child in holders.get(later, ()) if child != parent)
    return tuple(tuple(sorted(own)) for own in children)


def running_order(children: Sequence[Sequence[int]]) -> tuple[int, ...]:
    """Every group before its children, lower indexes first; shorter than the groups if there is a cycle."""
    return tuple(least_first_order(children))


def levels(children: Sequence[Sequence[int]]) -> tuple[int, ...]:
    """By group: the edges of the longest path that leads to it. The groups must have no cycle."""
    level = [0] * len(children)
    for group in running_order(children):
        for child in children[group]:
            level[child] = max(level[child], level[group] + 1)
    return tuple(level)
