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

# Shares of the limit: room for rounding in sums.
_SLACK = 1e-9


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
