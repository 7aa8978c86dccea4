"""Which ideals, with which devices used, can still lead to a placement below the limit; and a bound on all.

What is left has to fit into what the other devices can do within the limit: weights on the classes turn that into one
number, as the dual of the fractional assignment does. Any weights give a valid bound.
"""

from __future__ import annotations

import numpy as np

from planner.partition.placement.device_states import DeviceStates
from planner.partition.placement.ideals.contraction import ItemCosts
from planner.partition.placement.ideals.ideal_costs import IdealSets, held
from planner.partition.problem import Booleans, Floats, Integers

# From so many classes on, bounds let every class take part, whether a device of it is left or not.
MAX_CLASSES_BY_PATTERN = 4
# Shares of the limit: room for rounding in sums.
_SLACK = 1e-9


def least_load(costs: ItemCosts, counts: tuple[int, ...]) -> float:
    """No placement's bottleneck is below: the largest item, and all work spread over all devices."""
    pattern = np.array(counts) > 0
    own = np.where(costs.supported & pattern[:, None], costs.seconds, np.inf)
    weights = _weights(costs, pattern)
    spread = float(_weighted(costs, weights).sum() / (weights[pattern] @ np.array(counts)[pattern]))
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
        _drop_overloaded(costs, sets, states.used, limit * (1 + _SLACK), alive, rest=False)
        _drop_overloaded(costs, sets, states.left, limit * (1 + _SLACK), alive, rest=True)
    alive[0, 0] = True
    return alive


def _room(devices: Integers, rooms: Floats) -> float:
    """Zero devices of unlimited room have none."""
    return float(rooms[devices > 0] @ devices[devices > 0])


def _drop_overloaded(
    costs: ItemCosts, sets: IdealSets, devices: Integers, limit: float, alive: Booleans, *, rest: bool
) -> None:
    by_pattern = devices.shape[1] <= MAX_CLASSES_BY_PATTERN
    patterns = devices > 0 if by_pattern else np.ones_like(devices, dtype=np.bool_)
    for pattern in np.unique(patterns, axis=0):
        states = np.flatnonzero((patterns == pattern).all(axis=1))
        usable = costs.supported[pattern].any(axis=0)
        stranded = _on_one_side(sets, (~usable).astype(np.float64), rest)
        alive[np.ix_(stranded > 0, states)] = False
        if not pattern.any():
            continue
        weights = _weights(costs, pattern)
        work = _on_one_side(sets, _weighted(costs, weights), rest)
        for state in states.tolist():
            alive[:, state] &= work <= limit * float(weights[pattern] @ devices[state, pattern])


def _on_one_side(sets: IdealSets, weight: Floats, rest: bool) -> Floats:
    """[ideals] the weight of the ideal's items, or of the others."""
    inside = held(sets.bits, weight)
    return inside[-1] - inside if rest else inside


def _weights(costs: ItemCosts, pattern: Booleans) -> Floats:
    """[k]: inf where the class is out. How much slower each class mostly is than the first of the pattern."""
    reference = int(np.argmax(pattern))
    weights = np.full(pattern.size, np.inf)
    for index in np.flatnonzero(pattern).tolist():
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
