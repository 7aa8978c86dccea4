"""The least bottleneck over chains of ideals: exact dynamic programming, pruned by the value in hand.

What is left of an ideal has to fit into what the other devices can do within the limit: weights on the classes turn
that into one number, as the dual of the fractional assignment does. Any weights give a valid bound.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from planner.cost_graphs.placement.ideals.contraction import ItemCosts
from planner.cost_graphs.placement.ideals.ideal_costs import IdealSets, held, ideal_sets, ideal_tables
from planner.partition.lattice import Words
from planner.partition.out_of_time import OutOfTime, never
from planner.partition.placement.device_states import DeviceStates
from planner.partition.problem import Booleans, Floats, Integers

_ROWS_AT_ONCE = 256
# Shares of the limit: room for rounding in sums.
_SLACK = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """Item numbers, and the class of the device that takes them."""

    items: tuple[int, ...]
    device_class: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Chain:
    """`stages` in order; `value_seconds` is inf if none below the limit were found. `complete`: none is better.

    `reached` [ideals, states]: the least bottleneck below the limit with which each ideal is covered.
    """

    stages: tuple[Stage, ...]
    value_seconds: float
    complete: bool
    num_pairs: int
    reached: Floats


def best_chain(
    costs: ItemCosts,
    ideals: Sequence[int],
    states: DeviceStates,
    class_bytes: Floats,
    limit: float,
    *,
    max_pairs: int,
    out_of_time: OutOfTime = never,
    allowed: Booleans | None = None,
) -> Chain:
    """The least bottleneck below `limit`, by states that `allowed` [ideals, states] has not ruled out.

    O(ideals^2 * (edges at a border + states)) before pruning.
    """
    from planner.cost_graphs.placement.ideals.stage_kernel import relax_rows

    sets = ideal_sets(costs, ideals)
    alive = may_lead_on(costs, sets, states, class_bytes, limit)
    if allowed is not None:
        alive &= allowed[sets.index]
    reachable = alive.sum(axis=1) > 0
    reached = np.full((len(ideals), states.num_states), np.inf)
    if not (reachable[0] and reachable[-1]):
        return Chain(stages=(), value_seconds=np.inf, complete=states.complete, num_pairs=0, reached=reached)
    sets, alive = sets.only(reachable), np.ascontiguousarray(alive[reachable])
    tables = ideal_tables(costs, sets)
    best = np.full(alive.shape, np.inf)
    best[0, 0] = 0.0
    parent = np.full(alive.shape, -1, dtype=np.int64)
    masks, num_ideals = _masks(alive), alive.shape[0]
    max_work = int(min(limit / sets.step_seconds, 1 << 62)) + costs.num_items
    num_pairs, row = 0, 0
    while row < num_ideals and num_pairs < max_pairs and not out_of_time():
        end = min(row + _ROWS_AT_ONCE, num_ideals)
        num_pairs += relax_rows(
            (row, end), sets.words, sets.work, tables, class_bytes, states.step, alive, masks, limit,
            max_work, best, parent,
        )  # fmt: skip
        row = end
    reached[sets.index] = best
    state = int(np.argmin(best[-1]))
    value = float(best[-1, state])
    return Chain(
        stages=_traced(sets, parent, states, state) if np.isfinite(value) else (),
        value_seconds=value,
        complete=states.complete and row == num_ideals,
        num_pairs=num_pairs,
        reached=reached,
    )


def _masks(alive: Booleans) -> Words:
    """[ideals]: a bit for each state that is alive, 64 apart sharing one."""
    masks = np.zeros(alive.shape[0], dtype=np.uint64)
    for state in range(alive.shape[1]):
        masks |= alive[:, state].astype(np.uint64) << np.uint64(state & 63)
    return masks


def _traced(sets: IdealSets, parent: Integers, states: DeviceStates, state: int) -> tuple[Stage, ...]:
    stages = []
    end = sets.work.size - 1
    while end:
        before, own = divmod(int(parent[end, state]), states.step.shape[1])
        start, state = divmod(before, states.num_states)
        members = np.flatnonzero(sets.bits[:, end] & ~sets.bits[:, start])
        stages.append(Stage(items=tuple(members.tolist()), device_class=own))
        end = start
    return tuple(reversed(stages))


def least_load(costs: ItemCosts, counts: tuple[int, ...]) -> float:
    """No placement's bottleneck is below: the largest item, and all work spread over all devices."""
    present = np.array(counts) > 0
    own = np.where(costs.supported & present[:, None], costs.seconds, np.inf)
    weights = _weights(costs, present)
    spread = float(_weighted(costs, weights).sum() / (weights[present] @ np.array(counts)[present]))
    return max(float(own.min(axis=0).max()), spread) * (1 - _SLACK)


def may_lead_on(costs: ItemCosts, sets: IdealSets, states: DeviceStates, class_bytes: Floats, limit: float) -> Booleans:
    """[ideals, states]: False where the devices used cannot hold the ideal, or the others the rest, below `limit`."""
    alive = np.ones((sets.work.size, states.num_states), dtype=np.bool_)
    held_bytes = held(sets.bits, costs.item_bytes)
    rest_bytes = held_bytes[-1] - held_bytes
    for state in range(states.num_states):
        alive[:, state] &= held_bytes <= _room(states.used[state], class_bytes)
        alive[:, state] &= rest_bytes <= _room(states.left[state], class_bytes)
    if np.isfinite(limit):
        present = states.left[0] > 0
        weights = _weights(costs, present)
        work = held(sets.bits, _weighted(costs, weights))
        most = states.left[:, present] @ weights[present] * limit * (1 + _SLACK)
        alive &= (work[-1] - work)[:, None] <= most
    alive[0, 0] = True
    return alive


def _room(devices: Integers, rooms: Floats) -> float:
    """Zero devices of unlimited room have none."""
    return float(rooms[devices > 0] @ devices[devices > 0])


def _weights(costs: ItemCosts, present: Booleans) -> Floats:
    """[k]: inf where there is no device of the class. How much slower each mostly is than the first that is present."""
    reference = int(np.argmax(present))
    weights = np.full(present.size, np.inf)
    for index in np.flatnonzero(present).tolist():
        both = costs.supported[reference] & costs.supported[index]
        both &= (costs.seconds[reference] > 0) & (costs.seconds[index] > 0)
        ratios = costs.seconds[reference, both] / costs.seconds[index, both]
        weights[index] = np.median(ratios) if ratios.size else 1.0
    return weights


def _weighted(costs: ItemCosts, weights: Floats) -> Floats:
    """[i]: the least weighted seconds on a class that takes part; 0 where none does."""
    allowed = costs.supported & np.isfinite(weights)[:, None]
    seconds = np.where(allowed, costs.seconds * np.where(np.isfinite(weights), weights, 0.0)[:, None], np.inf)
    least = seconds.min(axis=0)
    return np.where(np.isfinite(least), least, 0.0)
