"""The walk over pairs of ideals, compiled."""

from __future__ import annotations

from typing import Any

import numpy as np

from planner.partition.placement.compiled import compiled

Array = np.ndarray[Any, Any]


@compiled
def list_blocks(
    max_blocks: int,
    inside: Array,
    step_begin: Array,
    step_from: Array,
    num_read: Array,
    border_begin: Array,
    border_tensor: Array,
    tensor_unit: Array,
    transfer: Array,
    used_bytes: Array,
    busy_seconds: Array,
    barred: Array,
    option_unit: Array,
    option_of_tensor: Array,
    option_bytes: Array,
    option_seconds: Array,
    option_loss: Array,
    option_order: Array,
    optional_bytes: Array,
    optional_seconds: Array,
    limits: Array,
) -> tuple[Array, Array, Array, Array]:
    """(begin, before, class, seconds); it stops early, with a larger count in `begin`, past `max_blocks`."""
    num_ideals, num_classes = inside.shape[0], limits.size
    begin = np.zeros(num_ideals + 1, dtype=np.int64)
    room = min(max_blocks, 1 << 16)
    before, classes = np.empty(room, dtype=np.int32), np.empty(room, dtype=np.int16)
    seconds = np.empty(room)
    reached_from = np.full(num_ideals, -1, dtype=np.int64)
    stack = np.empty(num_ideals, dtype=np.int64)
    count = 0
    largest = limits.max() if num_classes else -1.0
    for after in range(num_ideals):
        stack[0], depth = after, 1
        while depth:
            depth -= 1
            here = stack[depth]
            for step in range(step_begin[here], step_begin[here + 1]):
                first = step_from[step]
                if reached_from[first] == after:
                    continue
                reached_from[first] = after
                if used_bytes[after] - used_bytes[first] > largest:
                    continue
                stack[depth] = first
                depth += 1
                for row in range(num_classes):
                    lasts = _block_seconds(
                        first, after, row, inside, num_read, border_begin, border_tensor, tensor_unit, transfer,
                        used_bytes, busy_seconds, barred, option_unit, option_of_tensor, option_bytes, option_seconds,
                        option_loss, option_order, optional_bytes, optional_seconds, limits,
                    )  # fmt: skip
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
def _block_seconds(
    first: int,
    after: int,
    row: int,
    inside: Array,
    num_read: Array,
    border_begin: Array,
    border_tensor: Array,
    tensor_unit: Array,
    transfer: Array,
    used_bytes: Array,
    busy_seconds: Array,
    barred: Array,
    option_unit: Array,
    option_of_tensor: Array,
    option_bytes: Array,
    option_seconds: Array,
    option_loss: Array,
    option_order: Array,
    optional_bytes: Array,
    optional_seconds: Array,
    limits: Array,
) -> float:
    """inf where the block does not fit or cannot run on the class."""
    spare = limits[row] - (used_bytes[after] - used_bytes[first])
    if spare < 0 or barred[row, after] != barred[row, first]:
        return np.inf
    lasts = busy_seconds[row, after] - busy_seconds[row, first]
    for entry in range(border_begin[first], border_begin[first + 1]):
        tensor = border_tensor[entry]
        if num_read[after, tensor] > num_read[first, tensor]:
            lasts += transfer[row, tensor]
    lasts += optional_seconds[row, after] - optional_seconds[row, first]
    spare -= optional_bytes[row, after] - optional_bytes[row, first]
    for entry in range(border_begin[after], border_begin[after + 1]):
        tensor = border_tensor[entry]
        if inside[first, tensor_unit[tensor]]:
            continue
        lasts += transfer[row, tensor]
        option = option_of_tensor[tensor]
        if option >= 0:
            lasts -= option_seconds[row, option]
            spare += option_bytes[row, option]
    if spare >= 0:
        return float(lasts)
    return float(lasts) + _least_loss(
        first, after, row, -spare, inside, border_begin, border_tensor, option_unit, option_of_tensor, option_bytes,
        option_loss, option_order,
    )  # fmt: skip


@compiled
def _least_loss(
    first: int,
    after: int,
    row: int,
    lacking: float,
    inside: Array,
    border_begin: Array,
    border_tensor: Array,
    option_unit: Array,
    option_of_tensor: Array,
    option_bytes: Array,
    option_loss: Array,
    option_order: Array,
) -> float:
    """A bound on what leaving options of `lacking` bytes costs: fractional, and at least the cheapest one."""
    free = np.zeros(option_unit.size, dtype=np.bool_)
    for entry in range(border_begin[after], border_begin[after + 1]):
        option = option_of_tensor[border_tensor[entry]]
        if option >= 0:
            free[option] = True
    least, lost = np.inf, 0.0
    for option in option_order[row]:
        unit, size = option_unit[option], option_bytes[row, option]
        if inside[after, unit] and not inside[first, unit] and not free[option] and size > 0:
            loss = option_loss[row, option]
            least = min(least, loss)
            lost += loss * min(1.0, max(lacking, 0.0) / size)
            lacking -= size
    return max(lost, least)
