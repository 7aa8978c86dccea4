"""The least bottleneck of a contiguous placement: stages in an order that every forward arc follows.

Exact where the order ideals are few enough (dynamic programming over pairs of ideals, as in Tarnawski et al., NeurIPS
2020), else the best over ideals along good orders, its items then moved from stage to stage, with the bound that is
proven. All ideals are searched in rounds:
first without the free items, then with those that the bound depends on. Between rounds an ideal stays only if, within
the relaxation, it is on a chain that is better than the value in hand, so that a round can afford to double them for
each free item that it takes in.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import isqrt

import numpy as np

from planner.cost_graphs.placement.costs import device_loads
from planner.cost_graphs.placement.ideals.absorption import absorb
from planner.cost_graphs.placement.ideals.contraction import ItemCosts, Items, item_costs, items_of, without_free_items
from planner.cost_graphs.placement.ideals.incumbent import StagesIncumbent
from planner.cost_graphs.placement.ideals.least_bottleneck import Chain, best_chain, least_load
from planner.cost_graphs.placement.ideals.moved_items import move_items
from planner.cost_graphs.placement.ideals.order_chains import search_orders
from planner.cost_graphs.placement.incumbent import EQUAL
from planner.cost_graphs.placement.infeasible import check_can_exist, nothing_fits
from planner.cost_graphs.placement.problem import Placement, PlacementProblem
from planner.partition.lattice import enumerate_ideals, order_of
from planner.partition.out_of_time import OutOfTime, never
from planner.partition.placement.device_states import DeviceStates, counted_states, num_counted_states
from planner.partition.problem import Booleans, Floats

# About ten seconds.
MAX_PAIRS = 3 << 30
MAX_IDEALS = 1 << 18
# Values of the search, by ideal and devices used.
MAX_VALUES = 1 << 23
MAX_STATES = 1 << 12
# Free items that a round takes in: fewer at once leave more to drop between rounds.
_TAKEN_AT_ONCE = 2
_MAX_ROUNDS = 24
# What working out one item or hyperedge of an ideal takes, in pairs.
_TABLE_STEPS = 8


def best_contiguous(
    problem: PlacementProblem,
    *,
    max_pairs: int = MAX_PAIRS,
    out_of_time: OutOfTime = never,
) -> Placement:
    """Proven optimal if `lower_bound_seconds` is the value. Raises Infeasible.

    At most about `max_pairs` pairs of ideals are looked at, after a first search that is not counted. What is not
    proven then has its items moved from stage to stage.
    """
    items, costs = _contracted(problem)
    check_can_exist(problem, items.item_of_node)
    incumbent = StagesIncumbent(problem)
    search_orders(items, costs, incumbent)
    bound = least_load(costs, tuple(problem.class_devices.tolist()))
    budget = Budget(num_pairs=max_pairs, out_of_time=out_of_time)
    bound = search_all_ideals(items, costs, incumbent, bound, budget)
    if bound < incumbent.to_beat:
        move_items(items, incumbent, bound, out_of_time)
    if incumbent.devices is None:
        raise nothing_fits(problem, "contiguous", proven=bound == float("inf"))
    return Placement(
        device_of_node=tuple(incumbent.devices.tolist()),
        value_seconds=incumbent.seconds,
        lower_bound_seconds=incumbent.seconds if bound >= incumbent.to_beat else bound,
    )


def _contracted(problem: PlacementProblem) -> tuple[Items, ItemCosts]:
    items = items_of(problem)
    items = absorb(items, item_costs(problem, items.item_of_node), problem.class_bytes)
    return items, item_costs(problem, items.item_of_node)


@dataclass(slots=True, kw_only=True)
class Budget:
    """Counts down in pairs of ideals."""

    num_pairs: int
    out_of_time: OutOfTime

    @property
    def is_spent(self) -> bool:
        return self.num_pairs <= 0 or self.out_of_time()


def search_all_ideals(
    items: Items, costs: ItemCosts, incumbent: StagesIncumbent, bound: float, budget: Budget
) -> float:
    """A bound at least as good, and a better incumbent if there is one. inf if no placement exists at all."""
    counts = tuple(incumbent.problem.class_devices.tolist())
    if num_counted_states(counts) > MAX_STATES:
        return bound
    rounds = _Rounds(items, costs, incumbent, counted_states(counts), budget)
    for _ in range(_MAX_ROUNDS):
        if bound >= incumbent.to_beat or budget.is_spent or not rounds.can_go_on:
            break
        bound = rounds.next_round(bound)
    return bound


class _Rounds:
    def __init__(
        self, items: Items, costs: ItemCosts, incumbent: StagesIncumbent, states: DeviceStates, budget: Budget
    ) -> None:
        self._items, self._costs, self._incumbent = items, costs, incumbent
        self._states, self._budget = states, budget
        limit = min(MAX_IDEALS, MAX_VALUES // states.num_states)
        order = order_of(items.num_ordered, items.arc_source, items.arc_target)
        self._ideals = list(enumerate_ideals(order, limit) or ())
        self._allowed: Booleans | None = None
        self._searched: list[int] = []
        self.can_go_on = bool(self._ideals)

    def next_round(self, bound: float) -> float:
        relaxed, left = without_free_items(self._costs, self._items, self._searched)
        limit = self._incumbent.seconds
        chain = self._chain(relaxed, self._ideals, limit, self._allowed)
        self._incumbent.offer_chain(self._items, chain, left)
        self.can_go_on = chain.complete
        if not chain.complete:
            return bound
        bound = max(bound, min(chain.value_seconds, limit))
        if bound < self._incumbent.to_beat and np.isfinite(bound):
            self.can_go_on = self._drop_hopeless(relaxed, chain) and self._take_in(bound)
        return bound

    def _chain(self, costs: ItemCosts, ideals: list[int], limit: float, allowed: Booleans | None) -> Chain:
        chain = best_chain(
            costs,
            ideals,
            self._states,
            self._incumbent.problem.class_bytes,
            limit,
            max_pairs=self._budget.num_pairs,
            out_of_time=self._budget.out_of_time,
            allowed=allowed,
        )
        self._budget.num_pairs -= chain.num_pairs + _TABLE_STEPS * len(ideals) * (costs.num_items + len(costs.edges))
        return chain

    def _drop_hopeless(self, costs: ItemCosts, chain: Chain) -> bool:
        """Keeps ideals that chains from both ends meet at. The loads of a stage are the same seen from behind."""
        limit = self._incumbent.seconds * (1 + 1e-12)
        everything = (1 << costs.num_items) - 1
        before = self._with_fewer(chain.reached)
        mirrored = [everything ^ ideal for ideal in self._ideals]
        behind = self._chain(costs, mirrored, limit, before[:, ::-1] < limit)
        if not behind.complete:
            return False
        allowed = np.maximum(before, self._with_fewer(behind.reached)[:, ::-1]) < limit
        hopeful = np.flatnonzero(allowed.sum(axis=1) > 0)
        self._ideals = [self._ideals[index] for index in hopeful.tolist()]
        self._allowed = allowed[hopeful]
        return True

    def _with_fewer(self, reached: Floats) -> Floats:
        """[ideals, states]: the least over states that have used no more devices of any class."""
        counts = self._states.used[-1]
        grid = reached.reshape(reached.shape[0], *(counts + 1).tolist())
        for axis in range(counts.size):
            grid = np.minimum.accumulate(grid, axis=1 + axis)
        return grid.reshape(reached.shape)

    def _take_in(self, bound: float) -> bool:
        """Doubles the ideals for each further free item, the critical ones first, as far as values can be held."""
        assert self._allowed is not None
        most = min(MAX_IDEALS, MAX_VALUES // self._states.num_states, isqrt(max(0, self._budget.num_pairs)))
        room = most // max(1, len(self._ideals))
        added = self._critical(bound)[: min(_TAKEN_AT_ONCE, max(0, room.bit_length() - 1))]
        for item in added:
            bit = 1 << (self._items.num_ordered + len(self._searched))
            self._ideals += [ideal | bit for ideal in self._ideals]
            self._allowed = np.concatenate([self._allowed, self._allowed])
            self._searched.append(item)
        return bool(added)

    def _critical(self, bound: float) -> list[int]:
        """Free items on a device that is slower than the bound; else any."""
        problem, devices = self._incumbent.problem, self._incumbent.devices
        free = [item for item in range(self._items.num_ordered, self._items.num_items) if item not in self._searched]
        if devices is None:
            return free
        slow = (device_loads(problem, devices) > bound * (1 + EQUAL))[devices]
        inside = set(self._items.item_of_node[slow].tolist())
        return [item for item in free if item in inside] or free
