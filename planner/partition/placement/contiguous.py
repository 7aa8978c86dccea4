"""The least bottleneck of a contiguous placement: stages in an order that every forward arc follows.

Exact where the order ideals are few enough (dynamic programming over pairs of ideals, as in Tarnawski et al., NeurIPS
2020), else the best over ideals along good orders, with the bound that is proven.
"""

from __future__ import annotations

from planner.partition.placement.ideals.absorption import absorb
from planner.partition.placement.ideals.all_ideals import Budget, search_all_ideals
from planner.partition.placement.ideals.contraction import ItemCosts, Items, item_costs, items_of
from planner.partition.placement.ideals.incumbent import StagesIncumbent
from planner.partition.placement.ideals.order_chains import search_orders
from planner.partition.placement.ideals.pruning import least_load
from planner.partition.placement.infeasible import check_can_exist, nothing_fits
from planner.partition.placement.problem import OutOfTime, Placement, PlacementProblem, never

# About ten seconds.
MAX_PAIRS = 3 << 30


def best_contiguous(
    problem: PlacementProblem, *, max_pairs: int = MAX_PAIRS, out_of_time: OutOfTime = never
) -> Placement:
    """Proven optimal if `lower_bound_seconds` is the value. Raises Infeasible.

    At most about `max_pairs` pairs of ideals are looked at, after a first search that is not counted.
    """
    items, costs = _contracted(problem)
    check_can_exist(problem, items.item_of_node)
    incumbent = StagesIncumbent(problem)
    search_orders(items, costs, incumbent)
    bound = least_load(costs, tuple(problem.class_devices.tolist()))
    budget = Budget(num_pairs=max_pairs, out_of_time=out_of_time)
    bound = search_all_ideals(items, costs, incumbent, bound, budget)
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
