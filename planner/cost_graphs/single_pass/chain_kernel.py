"""Blocks between ideals, and cheapest chains of them, compiled: a step costs its seconds times the flow through it."""

from __future__ import annotations

from typing import Any, NamedTuple

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


class BlockTables(NamedTuple):
    """Of ideals [i], tensors [t], units [u], options [o] and serial classes [a], as PassGraph and PassIdeals have them.

    `num_read` [i, t]: readers inside. What others still read is `border_tensor[border_begin[i]:border_begin[i + 1]]`.
    `used_bytes` [i], `busy_seconds`, `barred` [a, i]: sums over an ideal's units; `optional_*`, over their options.
    `option_order` [a, o]: cheapest loss per byte first. `limits` [a]: bytes.
    """

    inside: Array
    step_begin: Array
    step_from: Array
    num_read: Array
    border_begin: Array
    border_tensor: Array
    tensor_unit: Array
    transfer: Array
    used_bytes: Array
    busy_seconds: Array
    barred: Array
    option_unit: Array
    option_of_tensor: Array
    option_bytes: Array
    option_seconds: Array
    option_loss: Array
    option_order: Array
    optional_bytes: Array
    optional_seconds: Array
    limits: Array


@compiled
def list_blocks(max_blocks: int, tables: BlockTables) -> tuple[Array, Array, Array, Array]:
    """(begin, before, class, seconds); it stops early, with a larger count in `begin`, past `max_blocks`."""
    num_ideals, num_classes = tables.inside.shape[0], tables.limits.size
    begin = np.zeros(num_ideals + 1, dtype=np.int64)
    room = min(max_blocks, 1 << 16)
    before, classes = np.empty(room, dtype=np.int32), np.empty(room, dtype=np.int16)
    seconds = np.empty(room)
    reached_from = np.full(num_ideals, -1, dtype=np.int64)
    stack = np.empty(num_ideals, dtype=np.int64)
    count = 0
    largest = tables.limits.max() if num_classes else -1.0
    for after in range(num_ideals):
        stack[0], depth = after, 1
        while depth:
            depth -= 1
            here = stack[depth]
            for step in range(tables.step_begin[here], tables.step_begin[here + 1]):
                first = tables.step_from[step]
                if reached_from[first] == after:
                    continue
                reached_from[first] = after
                if tables.used_bytes[after] - tables.used_bytes[first] > largest:
                    continue
                stack[depth] = first
                depth += 1
                for row in range(num_classes):
                    lasts = _block_seconds(first, after, row, tables)
                    if lasts == np.inf:
                        continue
                    if count == room:
                        if room >= max_blocks:
                            begin[num_ideals] = max_blocks + 1
                            return begin, before, classes, seconds
                        room = min(max_blocks, 2 * room)
                        before, classes = _grown(before, room), _grown(classes, room)
                        seconds = _grown(seconds, room)
                    before[count], classes[count], seconds[count] = first, row, lasts
                    count += 1
        begin[after + 1] = count
    return begin, before[:count].copy(), classes[:count].copy(), seconds[:count].copy()


@compiled
def _grown(array: Array, room: int) -> Array:
    larger = np.empty(room, dtype=array.dtype)
    larger[: array.size] = array
    return larger


@compiled
def _block_seconds(first: int, after: int, row: int, tables: BlockTables) -> float:
    """inf where the block does not fit or cannot run on the class."""
    spare = tables.limits[row] - (tables.used_bytes[after] - tables.used_bytes[first])
    if spare < 0 or tables.barred[row, after] != tables.barred[row, first]:
        return np.inf
    lasts = tables.busy_seconds[row, after] - tables.busy_seconds[row, first]
    for entry in range(tables.border_begin[first], tables.border_begin[first + 1]):
        tensor = tables.border_tensor[entry]
        if tables.num_read[after, tensor] > tables.num_read[first, tensor]:
            lasts += tables.transfer[row, tensor]
    lasts += tables.optional_seconds[row, after] - tables.optional_seconds[row, first]
    spare -= tables.optional_bytes[row, after] - tables.optional_bytes[row, first]
    for entry in range(tables.border_begin[after], tables.border_begin[after + 1]):
        tensor = tables.border_tensor[entry]
        if tables.inside[first, tables.tensor_unit[tensor]]:
            continue
        lasts += tables.transfer[row, tensor]
        option = tables.option_of_tensor[tensor]
        if option >= 0:
            lasts -= tables.option_seconds[row, option]
            spare += tables.option_bytes[row, option]
    if spare >= 0:
        return float(lasts)
    return float(lasts) + _least_loss(first, after, row, -spare, tables)


@compiled
def _least_loss(first: int, after: int, row: int, lacking: float, tables: BlockTables) -> float:
    """A bound on what leaving options of `lacking` bytes costs: fractional, and at least the cheapest one."""
    free = np.zeros(tables.option_unit.size, dtype=np.bool_)
    for entry in range(tables.border_begin[after], tables.border_begin[after + 1]):
        option = tables.option_of_tensor[tables.border_tensor[entry]]
        if option >= 0:
            free[option] = True
    least, lost = np.inf, 0.0
    for option in tables.option_order[row]:
        unit, size = tables.option_unit[option], tables.option_bytes[row, option]
        if tables.inside[after, unit] and not tables.inside[first, unit] and not free[option] and size > 0:
            loss = tables.option_loss[row, option]
            least = min(least, loss)
            lost += loss * min(1.0, max(lacking, 0.0) / size)
            lacking -= size
    return max(lost, least)
