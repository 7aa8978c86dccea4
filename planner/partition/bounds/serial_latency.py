"""A bound on a lone batch where each device runs one stage, which waits for all that it reads and sends at its end.

What lies between two nodes of a longest path that stand in one stage stands in that stage too, since edges go to higher
stages only, and adds all its work to the path. Where they stand apart, stages of their own between the two may run side
by side: the batch goes through any of these, the longest too, and is sent before it and behind it. Such stages serve no
other block, or they would wait for themselves; and what is before, between and behind blocks that are parted runs on
devices of its own.

Devices can be counted by number or by speed, and the better bound counts. By number: of a block with m stages of its
own, on devices as fast together as s of the fastest, at most 1 - 1/s of the work is spared, and one device more than
blocks are parted runs what is outside them; either one of these is among the fastest, or all that is outside runs
slower. By speed: all devices together are as fast as so many of the fastest, and each use of a device takes its share
of that. At any price for speed, the cheapest choice of blocks to part and of speeds, less the price of all there is,
bounds the batch's time (a Lagrangian relaxation); the best price is searched for.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from planner.partition.arcs import topological_order
from planner.partition.bounds.longest_path import between_path_nodes, longest_path, message_seconds, neighbours
from planner.partition.problem import Floats, Integers, PartitionProblem
from planner.partition.program_orders import Bundles

# What lies between path nodes further apart is not counted, in turn: it would keep apart too many others.
_SPANS = (4, 8, 16, 32, 64, 128, 512)
# So many stages side by side, or more, are taken to spare all of a block's work: each count is tried for each block.
_MANY = 16
# Blocks that may be parted by speed; of others what is beside the path is not counted.
_MAX_BLOCKS = 256
# Golden section: the price is known to 1 %, and the bound, which is flat there, far better.
_PRICES = 16
_MARGIN = 1 - 1e-9


def serial_bound(problem: PartitionProblem, bundles: Bundles, num_stages: int = 0) -> float:
    """Not where a device may run several stages, or nodes again. O(reads + nodes). `num_stages` 0: any number."""
    fastest = problem.compute_seconds.min(axis=0)
    seconds: Floats = np.bincount(bundles.bundle_of_node, fastest, bundles.count).astype(np.float64)
    before, after = neighbours(problem, bundles)
    order = topological_order(before, after)
    path = longest_path(order, before, seconds.tolist())
    first, last = between_path_nodes(order, before, after, path)
    on_path = np.zeros(bundles.count, dtype=np.bool_)
    on_path[path] = True
    beside = np.flatnonzero(~on_path & (first >= 0) & (last < len(path)))
    message = message_seconds(problem, bundles)
    path_seconds = seconds[path]
    most_stages = min(problem.num_devices, num_stages or problem.num_devices)
    longest = float(path_seconds.sum())
    slowness = _slowness(problem.compute_seconds, fastest)
    bounds = [longest]
    for span in _SPANS:
        near = beside[last[beside] - first[beside] <= span]
        if near.size:
            blocks = _blocks(path_seconds, message, path, near, seconds[near], first[near], last[near])
            in_turn = longest + float(blocks.beside.sum())
            spared = in_turn - _spared(blocks, most_stages, slowness)
            bounds.append(min(spared, _slower(blocks, in_turn, most_stages, slowness)))
            largest = _largest_blocks(blocks)
            in_turn = longest + float(largest.beside.sum())
            bounds.append(_by_speed(largest, in_turn, slowness[:most_stages]))
    return max(bounds) * _MARGIN


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Blocks:
    """Stretches of the path between nodes that no bundle beside the path runs past. Seconds of each block: of all
    `before` it in turn, of bundles `beside` the path, of these and the path's own `within`, and of the least `message`
    inside."""

    before: Floats
    beside: Floats
    within: Floats
    message: Floats


def _blocks(
    path_seconds: Floats,
    message: Floats,
    path: list[int],
    near: Integers,
    seconds: Floats,
    first: Integers,
    last: Integers,
) -> _Blocks:
    """Of the bundles `near`, each between its places on the path. Others lie in some block or in none: their messages
    count for each."""
    size = int(last.max()) + 1
    crossed = np.zeros(size + 1)
    np.add.at(crossed, first + 1, 1)
    np.add.at(crossed, last, -1)
    ends = np.flatnonzero(np.cumsum(crossed[:size]) == 0)
    block = np.searchsorted(ends, first, side="right") - 1
    starts, count = ends[:-1], ends.size - 1
    before = np.concatenate([[0.0], np.cumsum(path_seconds)])
    beside = np.bincount(block, seconds, count).astype(np.float64)
    elsewhere = np.ones(message.size, dtype=np.bool_)
    elsewhere[near], elsewhere[path] = False, False
    least = np.minimum.reduceat(message[path][: ends[-1]], starts)
    np.minimum.at(least, block, message[near])
    return _Blocks(
        before=before[starts + 1] + np.concatenate([[0.0], np.cumsum(beside)[:-1]]),
        beside=beside,
        within=beside + before[ends[1:]] - before[starts + 1],
        message=np.minimum(least, message[elsewhere].min(initial=np.inf)),
    )


def _slowness(compute_seconds: Floats, fastest: Floats) -> Floats:
    """[devices] ascending: how many times the least seconds of a node it takes at least, for each."""
    takes_time = (fastest > 0) & np.isfinite(fastest)
    least: Floats = (compute_seconds[:, takes_time] / fastest[takes_time]).min(axis=1, initial=np.inf)
    return np.sort(np.where(np.isfinite(least), least, 1.0))


def _spared(blocks: _Blocks, most_stages: int, slowness: Floats) -> float:
    """Seconds that blocks with stages of their own take off the path at most, where a stage outside has one of the
    fastest devices: one stage for each behind it, and at least two side by side. O(stages^2) once the largest blocks
    are known."""
    spared = np.zeros(most_stages)
    counts = np.arange(2, min(most_stages - 1, _MANY + 1))
    shares = 1 - 1 / np.cumsum(1 / slowness[1:])[counts - 1]
    shares[counts == _MANY] = 1.0
    each = np.minimum(
        blocks.within[:, None] * shares - 2 * blocks.message[:, None],
        (blocks.beside - blocks.message)[:, None],
    )
    for own in each[_largest(each, _most_parted(most_stages))]:
        better = spared.copy()
        for count, seconds in zip(counts.tolist(), own.tolist(), strict=True):
            better[count + 1 :] = np.maximum(better[count + 1 :], spared[: -count - 1] + seconds)
        spared = better
    return float(spared.max())


def _slower(blocks: _Blocks, in_turn: float, most_stages: int, slowness: Floats) -> float:
    """Seconds where no stage outside the parted blocks has one of the fastest devices."""
    slower = slowness[slowness > slowness[0] * (1 + 1e-9)]
    if not slower.size:
        return math.inf
    apart = np.sort(blocks.within)[::-1][: _most_parted(most_stages)]
    return float(slower[0] * (in_turn - apart.sum()))


def _most_parted(most_stages: int) -> int:
    """Of blocks: each takes two stages and one behind it, and there is one before all."""
    return (most_stages - 1) // 3


def _largest(each: Floats, most: int) -> Integers:
    """Rows that are among so many largest of some column; of those some choice of so many rows is the best."""
    if each.shape[0] <= most or not each.size:
        return np.arange(each.shape[0] if each.size else 0)
    return np.unique(np.argpartition(-each, most - 1, axis=0)[:most])


def _largest_blocks(blocks: _Blocks) -> _Blocks:
    """Those with something beside the path, but for what is too many; of the rest nothing beside it counts."""
    order = np.argsort(-blocks.beside, kind="stable")[:_MAX_BLOCKS]
    kept = np.sort(order[blocks.beside[order] > 0])
    left = blocks.beside.copy()
    left[kept] = 0.0
    before = blocks.before - np.concatenate([[0.0], np.cumsum(left)[:-1]])
    return _Blocks(
        before=before[kept], beside=blocks.beside[kept], within=blocks.within[kept], message=blocks.message[kept]
    )


def _by_speed(blocks: _Blocks, in_turn: float, slowness: Floats) -> float:
    """Seconds where the stages beside one another, and those outside, share the devices' speed."""
    if not blocks.within.size:
        return in_turn
    section, low, high = (math.sqrt(5) - 1) / 2, 0.0, float(blocks.within.max())
    bounds = []
    for _ in range(_PRICES):
        lower, higher = high - section * (high - low), low + section * (high - low)
        pair = [_at_price(price, blocks, in_turn, slowness) for price in (lower, higher)]
        low, high = (lower, high) if pair[0] < pair[1] else (low, higher)
        bounds += pair
    return max(bounds)


def _at_price(price: float, blocks: _Blocks, in_turn: float, slowness: Floats) -> float:
    """Seconds at least, at so many seconds for the speed of one of the fastest devices. O(blocks^2 x kinds).

    A stage outside runs on a device of one kind. A parted block has stages as fast as one device, or it gains nothing:
    all that is inside takes its share, what the path has there runs in turn, and messages come before and behind it.
    """
    speeds = np.unique(1 / slowness)
    along = blocks.within - blocks.beside
    fastest = np.full(along.size, np.inf)
    np.divide(blocks.within, along - blocks.message, out=fastest, where=along > blocks.message)
    speed = np.maximum(1.0, np.minimum(np.sqrt(blocks.within / price), fastest))
    parted = np.maximum(blocks.within / speed + 2 * blocks.message, along + blocks.message) + price * speed
    parted = np.minimum(parted, blocks.within + 2 * blocks.message + price * speeds[0])
    ends, begins = blocks.before + blocks.within, np.append(blocks.before, in_turn)
    # Until a block begins, those before it parted or not; what is outside begins at 0 or where a parted block ends.
    until, outside_from = np.empty(begins.size), np.concatenate([[0.0], ends])
    behind = np.zeros(begins.size)
    for block, begin in enumerate(begins.tolist()):
        outside = (begin - outside_from[: block + 1])[:, None] / speeds + price * speeds
        until[block] = (behind[: block + 1] + outside.min(axis=1)).min()
        behind[block + 1 : block + 2] = until[block] + parted[block : block + 1]
    return float(until[-1] - price * (1 / slowness).sum())
