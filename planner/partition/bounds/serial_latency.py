"""A bound on a lone batch where each device runs one stage, which waits for all that it reads and sends at its end.

What lies between two nodes of a longest path that stand in one stage stands in that stage too, since edges go to higher
stages only, and adds all its work to the path. Where they stand apart, stages of their own between the two may run side
by side: the batch goes through any of these, the longest too, and is sent before it and behind it. Such stages serve no
other block, or they would wait for themselves; and what is before, between and behind blocks that are parted runs on
devices of its own.

Two bounds follow, and the better one counts. By number: of a block with m stages of its own, on devices as fast
together as s of the fastest, at most 1 - 1/s of the work is spared, and one device more than blocks are parted runs
what is outside them; either one of these is among the fastest, or all that is outside runs slower. By prices of
devices, so that each serves once: `priced_blocks`.
"""

from __future__ import annotations

import math

import numpy as np

from planner.partition.arcs import topological_order
from planner.partition.bounds.longest_path import between_path_nodes, longest_path, message_seconds, neighbours
from planner.partition.bounds.priced_blocks import Blocks, priced_bound
from planner.partition.problem import Floats, Integers, PartitionProblem
from planner.partition.program_orders import Bundles

# What lies between path nodes further apart is not counted, in turn: it would keep apart too many others.
_SPANS = (4, 8, 16, 32, 64, 128, 512)
# So many stages side by side, or more, are taken to spare all of a block's work: each count is tried for each block.
_MANY = 16
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
    bounds, several = [longest], []
    for span in _SPANS:
        near = beside[last[beside] - first[beside] <= span]
        if near.size:
            blocks = _blocks(path_seconds, message, path, near, seconds[near], first[near], last[near])
            in_turn = longest + float(blocks.beside.sum())
            spared = in_turn - _spared(blocks, most_stages, slowness)
            bounds.append(min(spared, _slower(blocks, in_turn, most_stages, slowness)))
            several.append(blocks)
    return max(*bounds, priced_bound(several, longest, slowness[:most_stages])) * _MARGIN


def _blocks(
    path_seconds: Floats,
    message: Floats,
    path: list[int],
    near: Integers,
    seconds: Floats,
    first: Integers,
    last: Integers,
) -> Blocks:
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
    return Blocks(
        before=before[starts + 1] + np.concatenate([[0.0], np.cumsum(beside)[:-1]]),
        beside=beside,
        within=beside + before[ends[1:]] - before[starts + 1],
        message=np.minimum(least, message[elsewhere].min(initial=np.inf)),
        bundles=tuple(
            np.append(own, path_seconds[start + 1 : end])
            for own, start, end in zip(_by_block(seconds, block, count), starts, ends[1:], strict=True)
        ),
    )


def _by_block(seconds: Floats, block: Integers, count: int) -> list[Floats]:
    order = np.argsort(block, kind="stable")
    return np.split(seconds[order], np.searchsorted(block[order], np.arange(1, count)))


def _slowness(compute_seconds: Floats, fastest: Floats) -> Floats:
    """[devices] ascending: how many times the least seconds of a node it takes at least, for each."""
    takes_time = (fastest > 0) & np.isfinite(fastest)
    least: Floats = (compute_seconds[:, takes_time] / fastest[takes_time]).min(axis=1, initial=np.inf)
    return np.sort(np.where(np.isfinite(least), least, 1.0))


def _spared(blocks: Blocks, most_stages: int, slowness: Floats) -> float:
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


def _slower(blocks: Blocks, in_turn: float, most_stages: int, slowness: Floats) -> float:
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
