"""Topological orders whose prefixes make good stages: the first incumbent is the best chain of such prefixes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from planner.partition.problem import Floats, Integers
from planner.partition.topological_order import after_of_arcs, depth_first_order, least_first_order


def item_orders(num_items: int, tails: Integers, heads: Integers) -> list[list[int]]:
    """The given order, its mirror among equals, by depth from either end, and depth first. O((items + arcs) log)."""
    after = after_of_arcs(tails.tolist(), heads.tolist(), num_items)
    before = after_of_arcs(heads.tolist(), tails.tolist(), num_items)
    depth = _depths(num_items, tails, heads)
    height = _depths(num_items, *_mirror(num_items, tails, heads))[::-1]
    mirrored = least_first_order(before)[::-1]
    ranks: list[Sequence[int]] = [range(num_items), range(num_items, 0, -1), depth, [-step for step in height]]
    orders = [least_first_order(after, rank.__getitem__) for rank in ranks]
    orders += [mirrored, depth_first_order(after)]
    mirror_tails, mirror_heads = _mirror(num_items, tails, heads)
    opposite = after_of_arcs(mirror_tails.tolist(), mirror_heads.tolist(), num_items)
    orders.append([num_items - 1 - item for item in depth_first_order(opposite)][::-1])
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
