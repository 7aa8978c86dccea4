"""Arcs: each once, what a cycle of them ties together, and orders of things that wait for each other.

Orders go by what is chosen of those that are ready: Kahn 1962. What a cycle holds up is left out of each. Linear, and
deterministic.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from heapq import heapify, heappop, heappush

import numpy as np
import rustworkx as rx

from planner.partition.problem import Integers


def distinct_arcs(tails: Integers, heads: Integers, num_items: int) -> tuple[Integers, Integers]:
    """Ascending by tail, then head, without arcs from an item to itself."""
    apart = tails != heads
    keys = np.unique(tails[apart] * num_items + heads[apart])
    return keys // num_items, keys % num_items


def components(tails: Integers, heads: Integers, num_items: int) -> Integers:
    """[items] the least of the items that wait for each other with it: of its strongly connected component."""
    graph = rx.PyDiGraph(multigraph=False)
    graph.add_nodes_from([None] * num_items)
    graph.add_edges_from_no_data(list(zip(tails.tolist(), heads.tolist(), strict=True)))
    least = np.arange(num_items)
    for members in rx.strongly_connected_components(graph):
        if len(members) > 1:
            least[list(members)] = min(members)
    return least


def topological_order(before: Sequence[Sequence[int]], after: Sequence[Sequence[int]]) -> list[int]:
    """Each after all before it, otherwise by number as they become ready."""
    waiting = [len(own) for own in before]
    order = [item for item, left in enumerate(waiting) if not left]
    for item in order:
        for reader in after[item]:
            waiting[reader] -= 1
            if not waiting[reader]:
                order.append(reader)
    return order


def depth_first_order(after: Sequence[Sequence[int]]) -> list[int]:
    """Of those that are ready the last to become so: one branch ends before the next begins."""
    waiting = _num_before(after)
    ready = [item for item in reversed(range(len(after))) if not waiting[item]]
    order: list[int] = []
    while ready:
        item = ready.pop()
        order.append(item)
        for reader in reversed(after[item]):
            waiting[reader] -= 1
            if not waiting[reader]:
                ready.append(reader)
    return order


def least_first_order(after: Sequence[Collection[int]], rank: Callable[[int], float] = lambda item: 0) -> list[int]:
    """Of those that are ready the one of least rank, then of least number. O(arcs + items log items)."""
    return least_by_turn(after, lambda item, _: (rank(item),))


def least_by_turn(after: Sequence[Collection[int]], rank: Callable[[int, int], tuple[float, ...]]) -> list[int]:
    """As `least_first_order`; a rank may depend on how many have their place when the item becomes ready."""
    waiting = _num_before(after)
    ready = [(rank(item, 0), item) for item, left in enumerate(waiting) if not left]
    heapify(ready)
    order: list[int] = []
    while ready:
        _, item = heappop(ready)
        order.append(item)
        for reader in after[item]:
            waiting[reader] -= 1
            if not waiting[reader]:
                heappush(ready, (rank(reader, len(order)), reader))
    return order


def after_of_arcs(tails: Iterable[int], heads: Iterable[int], num_items: int) -> list[list[int]]:
    """[items] the heads of each item's arcs, in the order of the arcs."""
    after: list[list[int]] = [[] for _ in range(num_items)]
    for tail, head in zip(tails, heads, strict=True):
        after[tail].append(head)
    return after


def nearest_kept(
    neighbours: Sequence[Collection[int]], order: Sequence[int], left_out: Sequence[bool]
) -> list[frozenset[int]]:
    """Of each item, the neighbours that are not left out, and those behind ones that are. In `order`, neighbours are
    before it."""
    nearest = [frozenset[int]()] * len(neighbours)
    for item in order:
        nearest[item] = frozenset[int]().union(
            *(nearest[near] if left_out[near] else (near,) for near in neighbours[item])
        )
    return nearest


def grouped(group: Integers, members: Integers, num_groups: int) -> tuple[Integers, Integers]:
    """Where each group begins, and where the last ends; and the members group by group, in their order."""
    order = np.argsort(group, kind="stable")
    return np.searchsorted(group[order], np.arange(num_groups + 1)), members[order]


def _num_before(after: Sequence[Collection[int]]) -> list[int]:
    waiting = [0] * len(after)
    for readers in after:
        for reader in readers:
            waiting[reader] += 1
    return waiting
