"""A first placement: the best chain over the prefixes of a few topological orders. Quick whatever the graph."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from planner.cost_graphs.placement.ideals.contraction import ItemCosts, Items, item_costs, without_free_items
from planner.cost_graphs.placement.ideals.incumbent import StagesIncumbent
from planner.cost_graphs.placement.ideals.least_bottleneck import best_chain
from planner.cost_graphs.placement.problem import PlacementProblem
from planner.partition.arcs import after_of_arcs, depth_first_order, least_first_order
from planner.partition.lattice import prefixes
from planner.partition.placement.device_states import (
    DeviceStates,
    counted_states,
    num_counted_states,
    ordered_states,
)
from planner.partition.problem import Floats, Integers

# Longer orders are cut into so many blocks.
MAX_BLOCKS = 1024
# Of graphs beyond this size, few orders are tried.
_MANY_ITEMS = 20_000
# With more ways to have used some of the devices, they are taken in a few orders only.
_MAX_COUNTED = 128
_UNLIMITED = 1 << 62


def search_orders(items: Items, costs: ItemCosts, incumbent: StagesIncumbent) -> None:
    """At most 10^8 steps; linear in the nodes."""
    orders = item_orders(items.num_ordered, items.arc_source, items.arc_target)
    states = list(_device_states(incumbent.problem, costs))
    if items.num_ordered <= MAX_BLOCKS:
        _offer_chains(items, costs, prefixes(orders), states, incumbent)
        return
    for order in orders if items.num_ordered <= _MANY_ITEMS else orders[:2]:
        blocks = _as_blocks(items, costs, order)
        block_costs = item_costs(incumbent.problem, blocks.item_of_node)
        _offer_chains(blocks, block_costs, prefixes([range(blocks.num_ordered)]), states, incumbent)


def _offer_chains(
    items: Items, costs: ItemCosts, ideals: Sequence[int], states: Sequence[DeviceStates], incumbent: StagesIncumbent
) -> None:
    if not costs.supported.any(axis=0).all():
        return
    relaxed, left = without_free_items(costs, items, ())
    room = incumbent.problem.class_bytes
    for each in states:
        chain = best_chain(relaxed, ideals, each, room, incumbent.seconds, max_pairs=_UNLIMITED)
        incumbent.offer_chain(items, chain, left)


def _device_states(problem: PlacementProblem, costs: ItemCosts) -> Iterator[DeviceStates]:
    counts = tuple(problem.class_devices.tolist())
    if num_counted_states(counts) <= _MAX_COUNTED:
        yield counted_states(counts)
        return
    by_speed = np.argsort(costs.seconds.sum(axis=1), kind="stable")
    fast_first = np.repeat(by_speed, problem.class_devices[by_speed])
    for order in (problem.class_of_device, fast_first, fast_first[::-1]):
        yield ordered_states(order.tolist(), problem.num_classes)


def _as_blocks(items: Items, costs: ItemCosts, order: Sequence[int]) -> Items:
    """The ordered items in runs that are placed whole, a chain; free items stay."""
    work = np.where(costs.supported, costs.seconds, np.inf).min(axis=0)[: items.num_ordered]
    block = even_blocks(order, work, MAX_BLOCKS)
    num_blocks = int(block.max()) + 1
    free = num_blocks + np.arange(items.num_items - items.num_ordered)
    return Items(
        item_of_node=np.concatenate([block, free])[items.item_of_node],
        num_items=num_blocks + free.size,
        num_ordered=num_blocks,
        arc_source=np.arange(num_blocks - 1),
        arc_target=np.arange(1, num_blocks),
    )


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
