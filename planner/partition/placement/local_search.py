"""Simulated annealing over cell → device: moves, swaps and moves of connected clusters.

A move changes the loads of two devices only, so a step costs the cell's pins. The energy is a high power sum of the
loads: it has slopes where the maximum alone is flat. Acceptance draws from a table of exponential order statistics and
the generator is an xorshift: no library function whose last bit differs between machines decides anything.

This file imports numba: import it where it is needed.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from planner.partition.problem import Floats, Integers

_TABLE = 1 << 12
# Expected order statistics of an exponential distribution: its quantiles by additions and divisions only.
EXPONENTIAL: Floats = np.cumsum(1.0 / np.arange(_TABLE, 0, -1, dtype=np.float64))
MAX_CLUSTER = 64


class Arena(NamedTuple):
    """What does not change: a Netlist and the devices, as contiguous arrays."""

    seconds: Floats
    held_bytes: Floats
    net_begin: Integers
    net_cell: Integers
    net_seconds: Floats
    cell_begin: Integers
    cell_net: Integers
    class_of_device: Integers
    device_bytes: Floats


class State(NamedTuple):
    """What a search changes. `count` [t, d]: pins of a net on a device. `best` is the best of `best_value[0]`."""

    device: Integers
    count: Integers
    load: Floats
    held: Floats
    random: Integers
    best: Integers
    best_value: Floats
    changed: Integers
    is_changed: Integers
    num_changed: Integers
    cluster: Integers
    in_cluster: Integers


@njit(cache=True)  # type: ignore[misc]
def _random(state, limit):
    """In [0, limit): xorshift64."""
    x = state.random[0]
    x ^= x << np.uint64(13)
    x ^= x >> np.uint64(7)
    x ^= x << np.uint64(17)
    state.random[0] = x
    return np.int64((x >> np.uint64(33)) % np.uint64(limit))


@njit(cache=True)  # type: ignore[misc]
def recount(arena, state):
    """Counts, loads and bytes from `device` alone."""
    state.count[:, :] = 0
    state.load[:] = 0.0
    state.held[:] = 0.0
    for cell in range(state.device.size):
        device = state.device[cell]
        state.load[device] += arena.seconds[arena.class_of_device[device], cell]
        state.held[device] += arena.held_bytes[cell]
        for at in range(arena.cell_begin[cell], arena.cell_begin[cell + 1]):
            state.count[arena.cell_net[at], device] += 1
    for net in range(arena.net_begin.size - 1):
        size = arena.net_begin[net + 1] - arena.net_begin[net]
        for at in range(arena.net_begin[net], arena.net_begin[net + 1]):
            device = state.device[arena.net_cell[at]]
            if 0 < state.count[net, device] < size:
                # The first pin on the device pays: the sign marks it as seen.
                state.load[device] += arena.net_seconds[arena.class_of_device[device], net]
                state.count[net, device] = -state.count[net, device]
        for at in range(arena.net_begin[net], arena.net_begin[net + 1]):
            device = state.device[arena.net_cell[at]]
            state.count[net, device] = abs(state.count[net, device])


@njit(cache=True)  # type: ignore[misc]
def _loads_after(arena, state, cell, target):
    """Loads of the cell's device and of `target` once it has moved."""
    origin = state.device[cell]
    leaves, enters = arena.class_of_device[origin], arena.class_of_device[target]
    below = state.load[origin] - arena.seconds[leaves, cell]
    above = state.load[target] + arena.seconds[enters, cell]
    for at in range(arena.cell_begin[cell], arena.cell_begin[cell + 1]):
        net = arena.cell_net[at]
        size = arena.net_begin[net + 1] - arena.net_begin[net]
        here, there = state.count[net, origin], state.count[net, target]
        if here == size:
            below += arena.net_seconds[leaves, net]
        if here == 1:
            below -= arena.net_seconds[leaves, net]
        if there == 0:
            above += arena.net_seconds[enters, net]
        if there == size - 1:
            above -= arena.net_seconds[enters, net]
    return below, above


@njit(cache=True)  # type: ignore[misc]
def _move(arena, state, cell, target, below, above):
    origin = state.device[cell]
    for at in range(arena.cell_begin[cell], arena.cell_begin[cell + 1]):
        state.count[arena.cell_net[at], origin] -= 1
        state.count[arena.cell_net[at], target] += 1
    state.load[origin] = below
    state.load[target] = above
    state.held[origin] -= arena.held_bytes[cell]
    state.held[target] += arena.held_bytes[cell]
    state.device[cell] = target
    if state.is_changed[cell] == 0:
        state.is_changed[cell] = 1
        state.changed[state.num_changed[0]] = cell
        state.num_changed[0] += 1


@njit(cache=True)  # type: ignore[misc]
def _keep_if_best(state, touched, other):
    """Copies only what changed since the last best: an improvement costs what led to it."""
    limit = state.best_value[0] * (1.0 - 1e-12)
    if state.load[touched] >= limit or state.load[other] >= limit:
        return
    value = state.load.max()
    if value >= limit:
        return
    state.best_value[0] = value
    for index in range(state.num_changed[0]):
        cell = state.changed[index]
        state.best[cell] = state.device[cell]
        state.is_changed[cell] = 0
    state.num_changed[0] = 0


@njit(cache=True)  # type: ignore[misc]
def _energy(load, scale, doublings):
    power = load * scale
    for _ in range(doublings):
        power *= power
    return power


@njit(cache=True)  # type: ignore[misc]
def _can_take(arena, state, cell, target):
    room = arena.device_bytes[target] - state.held[target]
    return arena.held_bytes[cell] <= room and arena.seconds[arena.class_of_device[target], cell] < np.inf


@njit(cache=True)  # type: ignore[misc]
def _target(arena, state, cell):
    """A device at random, or every other time one that holds a neighbour."""
    begin, end = arena.cell_begin[cell], arena.cell_begin[cell + 1]
    if end == begin or _random(state, 2) == 0:
        return _random(state, state.load.size)
    net = arena.cell_net[begin + _random(state, end - begin)]
    first, last = arena.net_begin[net], arena.net_begin[net + 1]
    return state.device[arena.net_cell[first + _random(state, last - first)]]


@njit(cache=True)  # type: ignore[misc]
def _try_move(arena, state, cell, target, scale, doublings, allowance):
    origin = state.device[cell]
    if not _can_take(arena, state, cell, target):
        return
    below, above = _loads_after(arena, state, cell, target)
    before = _energy(state.load[origin], scale, doublings) + _energy(state.load[target], scale, doublings)
    after = _energy(below, scale, doublings) + _energy(above, scale, doublings)
    if after - before <= allowance:
        _move(arena, state, cell, target, below, above)
        _keep_if_best(state, origin, target)


@njit(cache=True)  # type: ignore[misc]
def _try_swap(arena, state, cell, other, scale, doublings, allowance):
    origin, target = state.device[cell], state.device[other]
    if arena.held_bytes[cell] - arena.held_bytes[other] > arena.device_bytes[target] - state.held[target]:
        return
    if arena.held_bytes[other] - arena.held_bytes[cell] > arena.device_bytes[origin] - state.held[origin]:
        return
    if arena.seconds[arena.class_of_device[target], cell] == np.inf:
        return
    if arena.seconds[arena.class_of_device[origin], other] == np.inf:
        return
    first, second = state.load[origin], state.load[target]
    before = _energy(first, scale, doublings) + _energy(second, scale, doublings)
    below, above = _loads_after(arena, state, cell, target)
    _move(arena, state, cell, target, below, above)
    below, above = _loads_after(arena, state, other, origin)
    if _energy(below, scale, doublings) + _energy(above, scale, doublings) - before <= allowance:
        _move(arena, state, other, origin, below, above)
        _keep_if_best(state, origin, target)
    else:
        _move(arena, state, cell, origin, second, first)


@njit(cache=True)  # type: ignore[misc]
def _grow(arena, state, cell, limit):
    """Cells of one device, connected, from `cell` on. Their number."""
    origin = state.device[cell]
    state.cluster[0] = cell
    state.in_cluster[cell] = 1
    size = 1
    for _ in range(4 * limit):
        if size == limit:
            break
        member = state.cluster[_random(state, size)]
        begin, end = arena.cell_begin[member], arena.cell_begin[member + 1]
        if begin == end:
            continue
        net = arena.cell_net[begin + _random(state, end - begin)]
        first, last = arena.net_begin[net], arena.net_begin[net + 1]
        found = arena.net_cell[first + _random(state, last - first)]
        if state.device[found] == origin and state.in_cluster[found] == 0:
            state.in_cluster[found] = 1
            state.cluster[size] = found
            size += 1
    for index in range(size):
        state.in_cluster[state.cluster[index]] = 0
    return size


@njit(cache=True)  # type: ignore[misc]
def _try_cluster(arena, state, cell, target, scale, doublings, allowance):
    origin = state.device[cell]
    limit = 2 + _random(state, 2 << _random(state, 5))
    size = _grow(arena, state, cell, min(limit, MAX_CLUSTER))
    first, second = state.load[origin], state.load[target]
    before = _energy(first, scale, doublings) + _energy(second, scale, doublings)
    moved = 0
    while moved < size and _can_take(arena, state, state.cluster[moved], target):
        below, above = _loads_after(arena, state, state.cluster[moved], target)
        _move(arena, state, state.cluster[moved], target, below, above)
        moved += 1
    below, above = state.load[origin], state.load[target]
    after = _energy(below, scale, doublings) + _energy(above, scale, doublings)
    if moved == size and after - before <= allowance:
        _keep_if_best(state, origin, target)
        return
    for index in range(moved):
        _move(arena, state, state.cluster[index], origin, second, first)


@njit(cache=True)  # type: ignore[misc]
def anneal(arena, state, exponential, scale, doublings, start, end, swaps, clusters, num_steps):
    """`num_steps` steps from temperature `start` to `end`; `swaps` and `clusters` of 256 steps are of that kind."""
    num_cells = state.device.size
    block = 256
    num_blocks = max(1, num_steps // block)
    for index in range(num_blocks):
        # Harmonic-like cooling by multiplication is geometric; the ratio is found by the caller's two ends.
        share = index / num_blocks
        temperature = start + (end - start) * share
        for _ in range(block):
            allowance = temperature * exponential[_random(state, exponential.size)]
            cell = _random(state, num_cells)
            kind = _random(state, 256)
            if kind < swaps:
                other = _random(state, num_cells)
                if state.device[cell] != state.device[other]:
                    _try_swap(arena, state, cell, other, scale, doublings, allowance)
                continue
            target = _target(arena, state, cell)
            if target == state.device[cell]:
                continue
            if kind < swaps + clusters:
                _try_cluster(arena, state, cell, target, scale, doublings, allowance)
            else:
                _try_move(arena, state, cell, target, scale, doublings, allowance)
