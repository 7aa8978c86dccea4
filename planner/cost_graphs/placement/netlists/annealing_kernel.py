"""Simulated annealing over cell → device: moves, swaps and moves of connected clusters.

A move changes the loads of two devices only, so a step costs the cell's pins. The energy is a high power sum of the
loads: it has slopes where the maximum alone is flat.

This file imports numba: import it where it is needed.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from planner.cost_graphs.placement.netlists.netlist import Netlist
from planner.partition.placement.compiled import compiled
from planner.partition.placement.draws_kernel import SEED, Random, draw
from planner.partition.problem import Floats, Integers

MAX_CLUSTER = 64
OVERFLOW = 4.0


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
    overflow_price: Floats


class State(NamedTuple):
    """What a search changes. `pins` [t, d]: pins of a net on a device. `best` is the best of `best_value[0]`."""

    device: Integers
    pins: Integers
    load: Floats
    held: Floats
    random: Random
    doublings: Integers
    best: Integers
    best_value: Floats
    changed: Integers
    is_changed: Integers
    num_changed: Integers
    cluster: Integers
    in_cluster: Integers


def arena_of(netlist: Netlist) -> Arena:
    """A device over its memory by all of that memory pays as much as OVERFLOW devices at the best load."""
    price = OVERFLOW / np.where(netlist.device_bytes > 0, netlist.device_bytes, 1.0)
    fields = [np.ascontiguousarray(getattr(netlist, field)) for field in Arena._fields[:-1]]
    return Arena._make([*fields, price])


def state_of(netlist: Netlist, devices: Integers) -> State:
    """For `recount`; 4 bytes for each net on each device."""
    cells = netlist.num_cells
    return State(
        device=devices.astype(np.int64),
        pins=np.zeros((netlist.num_nets, netlist.num_devices), dtype=np.int32),
        load=np.zeros(netlist.num_devices),
        held=np.zeros(netlist.num_devices),
        random=np.array([SEED], dtype=np.uint64),
        doublings=np.zeros(1, dtype=np.int64),
        best=devices.astype(np.int64),
        best_value=np.zeros(1),
        changed=np.zeros(cells, dtype=np.int64),
        is_changed=np.zeros(cells, dtype=np.int8),
        num_changed=np.zeros(1, dtype=np.int64),
        cluster=np.zeros(MAX_CLUSTER, dtype=np.int64),
        in_cluster=np.zeros(cells, dtype=np.int8),
    )


@compiled
def recount(arena: Arena, state: State) -> None:
    """Counts, loads and bytes from `device` alone."""
    state.pins[:, :] = 0
    state.load[:] = 0.0
    state.held[:] = 0.0
    for cell in range(state.device.size):
        device = state.device[cell]
        state.load[device] += arena.seconds[arena.class_of_device[device], cell]
        state.held[device] += arena.held_bytes[cell]
        for at in range(arena.cell_begin[cell], arena.cell_begin[cell + 1]):
            state.pins[arena.cell_net[at], device] += 1
    for net in range(arena.net_begin.size - 1):
        size = arena.net_begin[net + 1] - arena.net_begin[net]
        for at in range(arena.net_begin[net], arena.net_begin[net + 1]):
            device = state.device[arena.net_cell[at]]
            if 0 < state.pins[net, device] < size:
                # The first pin on the device pays: the sign marks it as seen.
                state.load[device] += arena.net_seconds[arena.class_of_device[device], net]
                state.pins[net, device] = -state.pins[net, device]
        for at in range(arena.net_begin[net], arena.net_begin[net + 1]):
            device = state.device[arena.net_cell[at]]
            state.pins[net, device] = abs(state.pins[net, device])


@compiled
def _loads_after(arena: Arena, state: State, cell: int, target: int) -> tuple[float, float]:
    """Loads of the cell's device and of `target` once it has moved."""
    origin = state.device[cell]
    leaves, enters = arena.class_of_device[origin], arena.class_of_device[target]
    below = state.load[origin] - arena.seconds[leaves, cell]
    above = state.load[target] + arena.seconds[enters, cell]
    for at in range(arena.cell_begin[cell], arena.cell_begin[cell + 1]):
        net = arena.cell_net[at]
        size = arena.net_begin[net + 1] - arena.net_begin[net]
        here, there = state.pins[net, origin], state.pins[net, target]
        if here == size:
            below += arena.net_seconds[leaves, net]
        if here == 1:
            below -= arena.net_seconds[leaves, net]
        if there == 0:
            above += arena.net_seconds[enters, net]
        if there == size - 1:
            above -= arena.net_seconds[enters, net]
    return below, above


@compiled
def _move(arena: Arena, state: State, cell: int, target: int, below: float, above: float) -> None:
    origin = state.device[cell]
    for at in range(arena.cell_begin[cell], arena.cell_begin[cell + 1]):
        state.pins[arena.cell_net[at], origin] -= 1
        state.pins[arena.cell_net[at], target] += 1
    state.load[origin] = below
    state.load[target] = above
    state.held[origin] -= arena.held_bytes[cell]
    state.held[target] += arena.held_bytes[cell]
    state.device[cell] = target
    if state.is_changed[cell] == 0:
        state.is_changed[cell] = 1
        state.changed[state.num_changed[0]] = cell
        state.num_changed[0] += 1


@compiled
def _keep_if_best(arena: Arena, state: State, touched: int, other: int) -> None:
    """Copies only what changed since the last best: an improvement costs what led to it."""
    limit = state.best_value[0] * (1.0 - 1e-12)
    if state.load[touched] >= limit or state.load[other] >= limit:
        return
    value = state.load.max()
    if value >= limit:
        return
    for device in range(state.held.size):
        if state.held[device] > arena.device_bytes[device]:
            return
    state.best_value[0] = value
    for index in range(state.num_changed[0]):
        cell = state.changed[index]
        state.best[cell] = state.device[cell]
        state.is_changed[cell] = 0
    state.num_changed[0] = 0


@compiled
def _energy(arena: Arena, state: State, device: int, load: float, more_bytes: float, scale: float) -> float:
    """The device's load as a share of the best value, to a power; and what it holds beyond its memory."""
    power = load * scale
    for _ in range(state.doublings[0]):
        power *= power
    over = state.held[device] + more_bytes - arena.device_bytes[device]
    return power + over * arena.overflow_price[device] if over > 0.0 else power


@compiled
def _runs(arena: Arena, cell: int, device: int) -> bool:
    return bool(arena.seconds[arena.class_of_device[device], cell] < np.inf)


@compiled
def _target(arena: Arena, state: State, cell: int) -> int:
    """A device at random, or every other time one that holds a neighbour."""
    begin, end = arena.cell_begin[cell], arena.cell_begin[cell + 1]
    if end == begin or draw(state.random, 2) == 0:
        return draw(state.random, state.load.size)
    net = arena.cell_net[begin + draw(state.random, end - begin)]
    first, last = arena.net_begin[net], arena.net_begin[net + 1]
    return int(state.device[arena.net_cell[first + draw(state.random, last - first)]])


@compiled
def _try_move(arena: Arena, state: State, cell: int, target: int, scale: float, allowance: float) -> None:
    origin, size = state.device[cell], arena.held_bytes[cell]
    below, above = _loads_after(arena, state, cell, target)
    before = _pair_energy(arena, state, origin, target, scale)
    after = _energy(arena, state, origin, below, -size, scale) + _energy(arena, state, target, above, size, scale)
    if after - before <= allowance:
        _move(arena, state, cell, target, below, above)
        _keep_if_best(arena, state, origin, target)


@compiled
def _pair_energy(arena: Arena, state: State, origin: int, target: int, scale: float) -> float:
    first = _energy(arena, state, origin, state.load[origin], 0.0, scale)
    return first + _energy(arena, state, target, state.load[target], 0.0, scale)


@compiled
def _try_swap(arena: Arena, state: State, cell: int, other: int, scale: float, allowance: float) -> None:
    origin, target = state.device[cell], state.device[other]
    first, second = state.load[origin], state.load[target]
    before = _pair_energy(arena, state, origin, target, scale)
    below, above = _loads_after(arena, state, cell, target)
    _move(arena, state, cell, target, below, above)
    above, below = _loads_after(arena, state, other, origin)
    more = arena.held_bytes[other]
    after = _energy(arena, state, origin, below, more, scale) + _energy(arena, state, target, above, -more, scale)
    if after - before <= allowance:
        _move(arena, state, other, origin, above, below)
        _keep_if_best(arena, state, origin, target)
    else:
        _move(arena, state, cell, origin, second, first)


@compiled
def _grow(arena: Arena, state: State, cell: int, limit: int) -> int:
    """Cells of one device, connected, from `cell` on. Their number."""
    origin = state.device[cell]
    state.cluster[0] = cell
    state.in_cluster[cell] = 1
    size = 1
    for _ in range(4 * limit):
        if size == limit:
            break
        member = state.cluster[draw(state.random, size)]
        begin, end = arena.cell_begin[member], arena.cell_begin[member + 1]
        if begin == end:
            continue
        net = arena.cell_net[begin + draw(state.random, end - begin)]
        first, last = arena.net_begin[net], arena.net_begin[net + 1]
        neighbour = arena.net_cell[first + draw(state.random, last - first)]
        if state.device[neighbour] == origin and state.in_cluster[neighbour] == 0:
            state.in_cluster[neighbour] = 1
            state.cluster[size] = neighbour
            size += 1
    for index in range(size):
        state.in_cluster[state.cluster[index]] = 0
    return size


@compiled
def _try_cluster(arena: Arena, state: State, cell: int, target: int, scale: float, allowance: float) -> None:
    origin = state.device[cell]
    limit = 2 + draw(state.random, 2 << draw(state.random, 5))
    size = _grow(arena, state, cell, min(limit, MAX_CLUSTER))
    first, second = state.load[origin], state.load[target]
    before = _pair_energy(arena, state, origin, target, scale)
    num_moved = 0
    while num_moved < size and _runs(arena, state.cluster[num_moved], target):
        below, above = _loads_after(arena, state, state.cluster[num_moved], target)
        _move(arena, state, state.cluster[num_moved], target, below, above)
        num_moved += 1
    if num_moved == size and _pair_energy(arena, state, origin, target, scale) - before <= allowance:
        _keep_if_best(arena, state, origin, target)
        return
    for index in range(num_moved):
        _move(arena, state, state.cluster[index], origin, second, first)


@compiled
def anneal(
    arena: Arena,
    state: State,
    exponential: Floats,
    start: float,
    ends: Floats,
    swaps: int,
    clusters: int,
    num_steps: int,
) -> None:
    """`num_steps` steps, the temperature falling with the square of what is left of the round: `ends` of [1, 0].

    `start` is the round's first temperature in units of one device at the best value's energy; `swaps` and `clusters`
    of 256 steps are of that kind.
    """
    num_cells, block = state.device.size, 256
    scale = 1.0 / state.best_value[0]
    for first in range(0, num_steps, block):
        left = ends[0] + (ends[1] - ends[0]) * (first / num_steps)
        temperature = start * left * left
        for _ in range(min(block, num_steps - first)):
            allowance = temperature * exponential[draw(state.random, exponential.size)]
            cell, kind = draw(state.random, num_cells), draw(state.random, 256)
            origin, other = state.device[cell], -1
            if kind < swaps:
                other = draw(state.random, num_cells)
                target = state.device[other]
            else:
                target = _target(arena, state, cell)
            if target == origin or not _runs(arena, cell, target):
                continue
            if kind >= swaps + clusters:
                _try_move(arena, state, cell, target, scale, allowance)
            elif kind >= swaps:
                _try_cluster(arena, state, cell, target, scale, allowance)
            elif _runs(arena, other, origin):
                _try_swap(arena, state, cell, other, scale, allowance)
