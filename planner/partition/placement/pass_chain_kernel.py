"""Cheapest chains of ideals, where a step costs its seconds times the flow that passes through it; compiled."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

Array = np.ndarray[Any, Any]


@njit(cache=True)  # type: ignore[untyped-decorator]
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


@njit(cache=True)  # type: ignore[untyped-decorator]
def chain_forward(
    begin: Array, before: Array, weighed: Array, step_begin: Array, step_from: Array, step_weighed: Array,
) -> tuple[Array, Array]:  # fmt: skip
    """([i] least cost to reach, [i] the way: a block's index, or -1 minus a step's)."""
    count = begin.size - 1
    cost, way = np.full(count, np.inf), np.zeros(count, dtype=np.int64)
    cost[0] = 0.0
    for after in range(1, count):
        for step in range(step_begin[after], step_begin[after + 1]):
            reached = cost[step_from[step]] + step_weighed[step]
            if reached < cost[after]:
                cost[after], way[after] = reached, -1 - step
        for block in range(begin[after], begin[after + 1]):
            reached = cost[before[block]] + weighed[block]
            if reached < cost[after]:
                cost[after], way[after] = reached, block
    return cost, way


@njit(cache=True)  # type: ignore[untyped-decorator]
def chain_backward(
    begin: Array, before: Array, weighed: Array, step_begin: Array, step_from: Array, step_weighed: Array,
) -> Array:  # fmt: skip
    """[i] least cost from there to the end."""
    count = begin.size - 1
    cost = np.full(count, np.inf)
    cost[count - 1] = 0.0
    for after in range(count - 1, 0, -1):
        for step in range(step_begin[after], step_begin[after + 1]):
            first = step_from[step]
            cost[first] = min(cost[first], cost[after] + step_weighed[step])
        for block in range(begin[after], begin[after + 1]):
            first = before[block]
            cost[first] = min(cost[first], cost[after] + weighed[block])
    return cost
