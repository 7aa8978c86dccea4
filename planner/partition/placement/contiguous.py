"""The least bottleneck of a contiguous placement: stages in an order that every forward arc follows.

Exact where the order ideals are few enough (dynamic programming over pairs of ideals, as in Tarnawski et al., NeurIPS
2020), else the best over ideals along good orders, with the bound that is proven.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from planner.partition.placement.absorption import MAX_ITEMS, absorb
from planner.partition.placement.device_counts import least_load, num_states
from planner.partition.placement.free_items import without_free_items
from planner.partition.placement.free_placement import place_free_items
from planner.partition.placement.ideal_search import Chain, best_chain
from planner.partition.placement.ideals import enumerate_ideals, order_of, prefixes
from planner.partition.placement.item_orders import even_blocks, item_orders
from planner.partition.placement.items import ItemCosts, Items, item_costs, items_of
from planner.partition.placement.loads import device_bytes, device_loads
from planner.partition.placement.problem import OutOfTime, Placement, PlacementProblem, never
from planner.partition.placement.shortage import check_feasible, not_found
from planner.partition.problem import Integers

MAX_PAIRS = 1 << 32
MAX_IDEALS = 1 << 18
# Values of the search, by ideal and devices used.
_MAX_VALUES = 1 << 23
# Longer orders are cut into so many blocks.
_MAX_BLOCKS = 1024
# Relative: a bound so close to the value proves it.
_PROVEN = 1e-10


def best_contiguous(
    problem: PlacementProblem, *, max_pairs: int = MAX_PAIRS, out_of_time: OutOfTime = never
) -> Placement:
    """Proven optimal if `lower_bound_seconds` is the value. Raises Infeasible. `max_pairs` of ideals are looked at."""
    items, costs = contracted(problem)
    check_feasible(problem, items, costs)
    search = _Search(problem, items, costs, max_pairs, out_of_time)
    search.along_orders()
    search.over_all_ideals()
    return search.placement()


def contracted(problem: PlacementProblem) -> tuple[Items, ItemCosts]:
    items = items_of(problem)
    costs = item_costs(problem, items.item_of_node)
    items = absorb(items, costs, problem.class_bytes)
    return items, item_costs(problem, items.item_of_node)


def count_ideals(problem: PlacementProblem, limit: int) -> int | None:
    """How many ideals the search would work on; None if more than `limit`, or more than memory holds.

    O(limit * width), and O(n log n) where the nodes alone are too many.
    """
    items = items_of(problem)
    if items.num_ordered > _most_items(limit):
        return None
    items, _ = contracted(problem)
    ideals = enumerate_ideals(order_of(items.num_ordered, items.arc_source, items.arc_target), limit)
    return None if ideals is None else len(ideals)


def _most_items(limit: int) -> int:
    """Beyond it even a chain has too many ideals, however many items join."""
    return MAX_ITEMS if limit > MAX_ITEMS else 64 * limit


class _Search:
    """The best placement so far, and the best bound."""

    def __init__(
        self, problem: PlacementProblem, items: Items, costs: ItemCosts, max_pairs: int, out_of_time: OutOfTime
    ) -> None:
        self._problem, self._items, self._costs = problem, items, costs
        self._counts = tuple(problem.class_devices.tolist())
        self._pairs_left, self._out_of_time = max_pairs, out_of_time
        self._bound = least_load(costs, self._counts)
        self._value = float("inf")
        self._devices: Integers | None = None
        self._infeasible = False

    def placement(self) -> Placement:
        if self._devices is None:
            raise not_found(self._problem, self._costs, proven=self._infeasible)
        return Placement(
            device_of_node=tuple(self._devices.tolist()),
            value_seconds=self._value,
            lower_bound_seconds=self._value if self._proven else self._bound,
        )

    def along_orders(self) -> None:
        """Chains of prefixes of a few orders: quick, and a good limit for the search over all ideals."""
        items = self._items
        orders = item_orders(items.num_ordered, items.arc_source, items.arc_target)
        if items.num_ordered <= _MAX_BLOCKS:
            relaxed, left = without_free_items(self._costs, items, ())
            self._accept(items, self._chain(relaxed, prefixes(orders), np.inf), left)
            return
        for order in orders:
            self._along_blocks(order)

    def over_all_ideals(self) -> None:
        """Rounds with ever more free items searched, until the bound meets the value or a limit ends it."""
        kept: frozenset[int] = frozenset()
        while not self._proven and not self._out_of_time():
            kept = self._round(kept)
            if not kept:
                return

    def _round(self, kept: frozenset[int]) -> frozenset[int]:
        """`kept`: nodes whose free items are searched. Returns more of them, or none if nothing is left to do."""
        limit = self._value
        found = self._within(limit)
        if found is None:
            self._bound = limit
            return frozenset()
        items, costs = found
        own = {int(items.item_of_node[node]) for node in kept}
        relaxed, left = without_free_items(costs, items, own)
        ideals = enumerate_ideals(order_of(left.size, items.arc_source, items.arc_target), MAX_IDEALS)
        if ideals is None or len(ideals) * num_states(self._counts) > _MAX_VALUES:
            return frozenset()
        chain = self._chain(relaxed, ideals, limit)
        if not chain.complete:
            self._accept(items, chain, left)
            return frozenset()
        self._infeasible = bool(np.isinf(chain.value_seconds) and np.isinf(limit))
        self._bound = max(self._bound, min(chain.value_seconds, limit))
        self._accept(items, chain, left)
        return self._longer(kept, items, set(left.tolist()), MAX_IDEALS // len(ideals))

    def _within(self, limit: float) -> tuple[Items, ItemCosts] | None:
        """Items that a placement below the limit keeps together; None if one of them runs nowhere within it."""
        items, costs = self._items, within_limit(self._costs, limit)
        while costs.supported.any(axis=0).all():
            fewer = absorb(items, costs, self._problem.class_bytes)
            if fewer.num_items == items.num_items:
                return items, costs
            items, costs = fewer, within_limit(item_costs(self._problem, fewer.item_of_node), limit)
        return None

    def _chain(self, costs: ItemCosts, ideals: Sequence[int], limit: float) -> Chain:
        chain = best_chain(
            costs, ideals, self._counts, self._problem.class_bytes, limit, self._pairs_left, self._out_of_time
        )
        self._pairs_left -= chain.num_pairs
        return chain

    def _along_blocks(self, order: Sequence[int]) -> None:
        """`order` of the ordered items, cut into blocks that are placed whole."""
        work = np.where(self._costs.supported, self._costs.seconds, np.inf).min(axis=0)
        block = even_blocks(order, work, _MAX_BLOCKS)
        num_blocks = int(block.max()) + 1
        num_free = self._items.num_items - self._items.num_ordered
        to_block = np.concatenate([block, num_blocks + np.arange(num_free)])
        items = Items(
            item_of_node=to_block[self._items.item_of_node],
            num_items=num_blocks + num_free,
            num_ordered=num_blocks,
            arc_source=np.arange(num_blocks - 1),
            arc_target=np.arange(1, num_blocks),
        )
        costs, left = without_free_items(item_costs(self._problem, items.item_of_node), items, ())
        if costs.supported.any(axis=0).all():
            self._accept(items, self._chain(costs, prefixes([range(num_blocks)]), self._value), left)

    def _accept(self, items: Items, chain: Chain, left: Integers) -> None:
        """The chain's stages on devices, and the free items beside them; kept if it fits and is better."""
        if np.isinf(chain.value_seconds):
            return
        problem = self._problem
        first = np.concatenate([[0], np.cumsum(problem.class_devices)])
        used = [0] * problem.num_classes
        device_of_item = np.full(items.num_items, -1, dtype=np.int64)
        for stage in chain.stages:
            device_of_item[left[list(stage.items)]] = first[stage.device_class] + used[stage.device_class]
            used[stage.device_class] += 1
        free = np.flatnonzero(device_of_item < 0)
        devices = place_free_items(
            problem, device_of_item[items.item_of_node], [np.flatnonzero(items.item_of_node == item) for item in free]
        )
        value = float(device_loads(problem, devices).max())
        fits = device_bytes(problem, devices) <= problem.class_bytes[problem.class_of_device]
        if fits.all() and value < self._value:
            self._value, self._devices = value, devices

    def _longer(self, kept: frozenset[int], items: Items, searched: set[int], factor: int) -> frozenset[int]:
        """Also the free items at the devices that are slower than the bound, as many as ideals may multiply by."""
        free = [item for item in range(items.num_ordered, items.num_items) if item not in searched]
        if self._proven or not free:
            return frozenset()
        near = [item for item in free if self._is_critical(np.flatnonzero(items.item_of_node == item))]
        chosen = (near or free)[: max(0, factor.bit_length() - 1)]
        firsts = {int(np.flatnonzero(items.item_of_node == item)[0]) for item in chosen}
        return kept | firsts if firsts else frozenset()

    def _is_critical(self, nodes: Integers) -> bool:
        """Whether it is on, or exchanges tensors with, a device that is slower than the bound."""
        problem, devices = self._problem, self._devices
        if devices is None:
            return True
        slow = device_loads(problem, devices) > self._bound * (1 + _PROVEN)
        makers = problem.tensor_producer[problem.read_tensor]
        made, read = np.isin(makers, nodes), np.isin(problem.read_node, nodes)
        near = np.concatenate([nodes, problem.read_node[made], makers[read]])
        return bool(slow[devices[near]].any())

    @property
    def _proven(self) -> bool:
        return self._infeasible or self._bound >= self._value * (1 - _PROVEN)


def within_limit(costs: ItemCosts, limit: float) -> ItemCosts:
    """An item that alone takes as long as the limit does not run there."""
    supported = costs.supported & (costs.seconds < limit)
    return replace(costs, supported=supported, seconds=np.where(supported, costs.seconds, 0.0))
