"""Cheapest chains of ideals, where a step costs its seconds times the flow that passes through it; compiled."""

from __future__ import annotations

from typing import Any

import numpy as np

from planner.partition.placement.compiled import compiled

Array = np.ndarray[Any, Any]


@compiled
def weigh_blocks(
    begin: Array, before: Array, seconds: Array, inside: Array, around: Array, beside_begin: Array,
    beside_unit: Array, beside_flow: Array,
) -> Array:  # fmt: skip
    """[b] seconds times the flow through the block: what neither ends before it nor runs past it.

    `around` [2, i]: flow that has ended inside an ideal, and that starts outside it. `beside_*`: by ideal, the units
    whose flow leaves it, and how much.
    """
    weighed = np.empty(seconds.size)
    for after in range(begin.size - 1):
        for block in range(begin[after], begin[after + 1]):
            first = before[block]
            flow = 1.0 - around[0, first] - around[1, after]
            for entry in range(beside_begin[after], beside_begin[after + 1]):
                if inside[first, beside_unit[entry]]:
                    flow -= beside_flow[entry]
            weighed[block] = max(0.0, flow) * seconds[block]
    return weighed


@compiled
def chain_forward(
    begin: Array, before: Array, classes: Array, weighed: Array, step_begin: Array, step_from: Array,
    step_weighed: Array, following: Array,
) -> tuple[Array, Array, Array]:  # fmt: skip
    """([i, s] least cost to reach; the way: a block's index, or -1 minus a step's; the state before)."""
    count, states = begin.size - 1, following.shape[1]
    cost = np.full((count, states), np.inf)
    way, came = np.zeros((count, states), dtype=np.int64), np.zeros((count, states), dtype=np.int64)
    cost[0, 0] = 0.0
    for after in range(1, count):
        for step in range(step_begin[after], step_begin[after + 1]):
            for state in range(states):
                reached = cost[step_from[step], state] + step_weighed[step]
                if reached < cost[after, state]:
                    cost[after, state], way[after, state], came[after, state] = reached, -1 - step, state
        for block in range(begin[after], begin[after + 1]):
            for state in range(states):
                then = following[classes[block], state]
                if then >= 0:
                    reached = cost[before[block], state] + weighed[block]
                    if reached < cost[after, then]:
                        cost[after, then], way[after, then], came[after, then] = reached, block, state
    return cost, way, came


@compiled
def chain_backward(
    begin: Array, before: Array, classes: Array, weighed: Array, step_begin: Array, step_from: Array,
    step_weighed: Array, following: Array,
) -> Array:  # fmt: skip
    """[i, s] least cost from there to the end."""
    count, states = begin.size - 1, following.shape[1]
    cost = np.full((count, states), np.inf)
    cost[count - 1] = 0.0
    for after in range(count - 1, 0, -1):
        for step in range(step_begin[after], step_begin[after + 1]):
            first = step_from[step]
            for state in range(states):
                cost[first, state] = min(cost[first, state], cost[after, state] + step_weighed[step])
        for block in range(begin[after], begin[after + 1]):
            first = before[block]
            for state in range(states):
                then = following[classes[block], state]
                if then >= 0:
                    cost[first, state] = min(cost[first, state], cost[after, then] + weighed[block])
    return cost


@compiled
def cost_through(
    begin: Array, before: Array, classes: Array, weighed: Array, following: Array, ahead: Array, behind: Array,
) -> Array:  # fmt: skip
    """[b] the least cost of a chain with that block."""
    cost = np.full(before.size, np.inf)
    for after in range(begin.size - 1):
        for block in range(begin[after], begin[after + 1]):
            for state in range(following.shape[1]):
                then = following[classes[block], state]
                if then >= 0:
                    through = ahead[before[block], state] + weighed[block] + behind[after, then]
                    cost[block] = min(cost[block], through)
    return cost
