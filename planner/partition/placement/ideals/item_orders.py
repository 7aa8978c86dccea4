"""Topological orders whose prefixes make good stages: the first incumbent is the best chain of such prefixes."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from planner.partition.placement.ideals.items import topological_order
from planner.partition.problem import Floats, Integers


def item_orders(num_items: int, tails: Integers, heads: Integers) -> list[list[int]]:
    """The given order, its mirror among equals, by depth from either end, and depth first. O((items + arcs) log)."""
    vertices = np.arange(num_items)
    depth = _depths(num_items, tails, heads)
    height = _depths(num_items, *_mirror(num_items, tails, heads))[::-1]
    mirrored = topological_order(vertices, heads, tails, range(num_items))[::-1]
    ranks: list[Sequence[int]] = [range(num_items), range(num_items, 0, -1), depth, [-step for step in height]]
    orders = [topological_order(vertices, tails, heads, rank) for rank in ranks]
    orders += [mirrored, _depth_first(num_items, tails, heads)]
    orders.append([num_items - 1 - item for item in _depth_first(num_items, *_mirror(num_items, tails, heads))][::-1])
    return orders


def even_blocks(order: Sequence[int], work: Floats, num_blocks: int) -> Integers:
    """[items] the block of each: runs of the order of about equal work and count."""
    share = work[list(order)] / max(float(work.sum()), 1e-300) + 1 / len(order)
    block = np.empty(len(order), dtype=np.int64)
    block[list(order)] = np.minimum((np.cumsum(share) / 2 * num_blocks).astype(np.int64), num_blocks - 1)
    used = np.zeros(num_blocks, dtype=np.int64)
    used[block] = 1
    return (np.cumsum(used) - 1)[block]


def _mirror(num_items: int, tails: Integers, heads: Integers) -> tuple[Integers, Integers]:
    return num_items - 1 - heads, num_items - 1 - tails


def _depths(num_items: int, tails: Integers, heads: Integers) -> list[int]:
    """Longest path from a source, for items numbered in a topological order."""
    depth = [0] * num_items
    order = np.argsort(heads, kind="stable")
    for tail, head in zip(tails[order].tolist(), heads[order].tolist(), strict=True):
        depth[head] = max(depth[head], depth[tail] + 1)
    return depth


def _depth_first(num_items: int, tails: Integers, heads: Integers) -> list[int]:
    """The item that became ready last comes first: one branch is finished before the next begins."""
    starts = np.searchsorted(tails, np.arange(num_items + 1), sorter=(sorter := np.argsort(tails, kind="stable")))
    targets = heads[sorter].tolist()
    spans = list(pairwise(starts.tolist()))
    waiting = np.bincount(heads, minlength=num_items).tolist()
    ready = [item for item in range(num_items - 1, -1, -1) if not waiting[item]]
    order = []
    while ready:
        item = ready.pop()
        order.append(item)
        begin, end = spans[item]
        for target in reversed(targets[begin:end]):
            waiting[target] -= 1
            if not waiting[target]:
                ready.append(target)
    return order
