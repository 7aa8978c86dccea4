"""Bounds on a lone batch by what lies between the nodes of a longest path.

block_bound holds for any stages on any devices. What has to run between two nodes of the path runs on one device, one
after the other; or on several, and then it is at best spread evenly, what runs apart waits for a message, and what the
second of the two nodes is handed from elsewhere is received by its device. Of disjoint stretches the times add up.

serial_bound holds where each device runs one stage, which waits for all that it reads and sends at its end. What lies
between two nodes of the path that stand in one stage stands in that stage too, since edges go to higher stages only,
and adds all its work to the path. Where they stand apart, stages of their own between the two may run side by side.
Such stages serve no other block, or they would wait for themselves; so one device more than blocks are parted runs what
is outside them. Of a block with m stages of its own, on devices as fast together as s of the fastest, at most 1 - 1/s
of the work is spared: the batch goes through any of these stages, the longest too, and is sent before it and behind
it. Either a stage outside has one of the fastest devices, or all that is outside runs slower.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from planner.partition.arcs import after_of_arcs, distinct_arcs, topological_order
from planner.partition.bounds.work import fair_weights
from planner.partition.ordered.hosts import distinct_rows
from planner.partition.problem import Floats, Integers, PartitionProblem
from planner.partition.program_orders import Bundles

# What lies between path nodes further apart is not counted, in turn: it would keep apart too many others.
_SPANS = (4, 8, 16, 32, 64, 128, 512)
# Places of the path that are looked at together; blocks that reach further are left out.
_STRETCH = 256
# How much more the device counts that the block is handed to at its end than it would if work were spread evenly.
_SHARES = (0.02, 0.05, 0.1, 0.2, 0.4, 0.8, 1.6)
# So many stages side by side, or more, are taken to spare all of a block's work: each count is tried for each block.
_MANY = 16
_MARGIN = 1 - 1e-9


def path_bound(problem: PartitionProblem, bundles: Bundles) -> float:
    """Seconds of a lone batch: the longest path, each node where it runs fastest, or all work on all devices."""
    fastest = problem.compute_seconds.min(axis=0)
    seconds = np.bincount(bundles.bundle_of_node, fastest, bundles.count)
    before, after = _neighbours(problem, bundles)
    path = _longest_path(topological_order(before, after), before, seconds.tolist())
    return max(float(seconds[path].sum()), float(fastest.sum()) / problem.num_devices) * _MARGIN


def serial_bound(problem: PartitionProblem, bundles: Bundles, num_stages: int = 0) -> float:
    """Not where a device may run several stages, or nodes again. O(reads + nodes). `num_stages` 0: any number."""
    fastest = problem.compute_seconds.min(axis=0)
    seconds: Floats = np.bincount(bundles.bundle_of_node, fastest, bundles.count).astype(np.float64)
    before, after = _neighbours(problem, bundles)
    order = topological_order(before, after)
    path = _longest_path(order, before, seconds.tolist())
    first, last = _between(order, before, after, path)
    on_path = np.zeros(bundles.count, dtype=np.bool_)
    on_path[path] = True
    beside = np.flatnonzero(~on_path & (first >= 0) & (last < len(path)))
    message = _message_seconds(problem, bundles)
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
            bounds.append(
                min(in_turn - _spared(blocks, most_stages, slowness), _slower(blocks, in_turn, most_stages, slowness))
            )
    return max(bounds) * _MARGIN


def block_bound(problem: PartitionProblem, bundles: Bundles) -> float:
    """Not where nodes may run again. O(reads + nodes + path x _STRETCH)."""
    kinds = distinct_rows(problem.compute_seconds)
    rows = np.array([np.bincount(bundles.bundle_of_node, row, bundles.count) for row in kinds.rows])
    weights = fair_weights(kinds.rows, kinds.counts)
    weights = weights / (weights * kinds.counts).sum()
    before, after = _neighbours(problem, bundles)
    order = topological_order(before, after)
    path = _longest_path(order, before, rows.min(axis=0).tolist())
    first, last = _between(order, before, after, path)
    # Place 0 stands before all nodes, and the last one behind them.
    on_path = np.array(path, dtype=np.int64)
    place = np.full(bundles.count, -1)
    place[on_path] = np.arange(1, on_path.size + 1)
    first[on_path], last[on_path] = first[on_path] - 1, last[on_path] + 1
    own = np.concatenate([[0.0], rows[:, path].min(axis=0), [0.0]])
    if not np.isfinite(own).all():
        return math.inf
    reads, latency = _reads(problem, bundles), _least(problem, problem.link_latency_seconds)
    message, handed = _message_seconds(problem, bundles), np.zeros(bundles.count)
    joined = place[reads.readers] == last[reads.makers] + 1
    np.add.at(handed, reads.makers[joined], reads.seconds[joined])
    blocks = _Blocks(
        first=first + 1,
        last=last + 1,
        alone=rows,
        spread=(rows * weights[:, None]).min(axis=0),
        message=message,
        handed=handed,
        path=on_path,
        latency_seconds=latency,
    )
    best = np.zeros(own.size)
    for start in range(0, own.size - 1, _STRETCH):
        end = min(start + _STRETCH, own.size - 1)
        least = blocks.least_seconds(start, end, own)
        for at in range(start + 1, end + 1):
            best[at] = (best[start:at] + own[start:at] + least[: at - start, at - start]).max()
    return float(best[-1]) * _MARGIN


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Blocks:
    """Arrays by bundle: it runs after place `first` and before place `last`; its seconds on each kind of device,
    `alone`, and `spread` over all, weighted; `message`: what it takes at least to send anything that it makes;
    `handed`: what the node at `last` takes at least to receive what it reads of it, without a latency."""

    first: Integers
    last: Integers
    alone: Floats
    spread: Floats
    message: Floats
    handed: Floats
    path: Integers
    latency_seconds: float

    def least_seconds(self, start: int, end: int, own: Floats) -> Floats:
        """[places, places] from `start` to `end`: what lies between two places takes so long.

        On several devices, each loses the time of a message after the first of two nodes, which it sends or waits for,
        and of one before the second; or one device begins when the other has ended. O(places^2 + bundles).
        """
        size = end - start + 1
        inside = np.flatnonzero((self.first >= start) & (self.last <= end))
        at = self.first[inside] - start, self.last[inside] - start
        alone = np.min([_summed(at, row[inside], size) for row in self.alone], axis=0)
        spread = _summed(at, self.spread[inside], size)
        places = np.arange(start, end + 1)
        is_node = (places > 0) & (places < own.size - 1)
        message = np.full((size, size), np.inf)
        np.minimum.at(message, at, self.message[inside])
        message = np.minimum.accumulate(np.minimum.accumulate(message[::-1], axis=0)[::-1], axis=1)
        message[is_node] = np.minimum(message[is_node], self.message[self.path[places[is_node] - 1]][:, None])
        message[~np.isfinite(message)] = 0.0
        apart = spread + message * (is_node[:, None] * 1.0 + is_node[None, :])
        fastest = self.alone[:, inside].min(axis=0)
        for share in _SHARES:
            own_seconds, message_seconds = share * fastest, (1 + share) * self.handed[inside]
            some = (1 + share) * self.latency_seconds + _summed_before(
                at, np.minimum(own_seconds, message_seconds), size
            )
            handed = np.minimum(_summed_before(at, own_seconds, size), some)
            with_the_next = (spread + handed) / (1 + share) + np.where(is_node[:, None], message, 0.0)
            apart = np.where(is_node[None, :], np.maximum(apart, with_the_next), apart)
        before = np.concatenate([[0.0], np.cumsum(own[start : end + 1])])
        along = before[None, :-1] - before[1:, None]
        least: Floats = np.maximum(np.minimum(alone, apart), along)
        return least


def _summed_before(at: tuple[Integers, Integers], seconds: Floats, size: int) -> Floats:
    """[i, j]: of those that lie between the places i and j, and j is the first behind them."""
    sums = np.zeros((size, size))
    np.add.at(sums, at, seconds)
    summed: Floats = np.cumsum(sums[::-1], axis=0)[::-1]
    return summed


def _summed(at: tuple[Integers, Integers], seconds: Floats, size: int) -> Floats:
    """[i, j]: of those that lie between the places i and j."""
    summed: Floats = np.cumsum(_summed_before(at, seconds, size), axis=1)
    return summed


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Reads:
    """Of what one bundle makes and another reads: seconds of the bytes over the best link."""

    makers: Integers
    readers: Integers
    seconds: Floats


def _reads(problem: PartitionProblem, bundles: Bundles) -> _Reads:
    made_by = problem.value_producer[problem.read_value]
    reads = np.flatnonzero(made_by >= 0)
    makers, readers = bundles.bundle_of_node[made_by[reads]], bundles.bundle_of_node[problem.read_node[reads]]
    apart = makers != readers
    pairs = np.unique(np.stack([problem.read_value[reads][apart], makers[apart], readers[apart]]), axis=1)
    per_byte = _least(problem, problem.link_seconds_per_byte)
    return _Reads(makers=pairs[1], readers=pairs[2], seconds=problem.value_bytes[pairs[0]] * per_byte)


def _least(problem: PartitionProblem, links: Floats) -> float:
    """Of any link between two devices."""
    apart = ~np.eye(problem.num_devices, dtype=np.bool_)
    return float(links[apart].min()) if problem.num_devices > 1 else 0.0


def _message_seconds(problem: PartitionProblem, bundles: Bundles) -> Floats:
    """By bundle: what it takes at least to send anything that it makes; infinite where nothing of it is read."""
    reads, message = _reads(problem, bundles), np.full(bundles.count, np.inf)
    np.minimum.at(message, reads.makers, _least(problem, problem.link_latency_seconds) + reads.seconds)
    return message


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _SerialBlocks:
    """Stretches of the path between nodes that no bundle beside the path runs past. Seconds of each block: of bundles
    `beside` the path, of these and the path's own `within`, and of the least `message` inside."""

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
) -> _SerialBlocks:
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
    return _SerialBlocks(
        beside=beside,
        within=beside + before[ends[1:]] - before[starts + 1],
        message=np.minimum(least, message[elsewhere].min(initial=np.inf)),
    )


def _slowness(compute_seconds: Floats, fastest: Floats) -> Floats:
    """[devices] ascending: how many times the least seconds of a node it takes at least, for each."""
    takes_time = (fastest > 0) & np.isfinite(fastest)
    least: Floats = (compute_seconds[:, takes_time] / fastest[takes_time]).min(axis=1, initial=np.inf)
    return np.sort(np.where(np.isfinite(least), least, 1.0))


def _spared(blocks: _SerialBlocks, most_stages: int, slowness: Floats) -> float:
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


def _slower(blocks: _SerialBlocks, in_turn: float, most_stages: int, slowness: Floats) -> float:
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


def _neighbours(problem: PartitionProblem, bundles: Bundles) -> tuple[list[list[int]], list[list[int]]]:
    """Bundles that a value ties; others only have an order."""
    makers, readers = (bundles.bundle_of_node[ends] for ends in problem.node_arcs)
    first, second = (ends.tolist() for ends in distinct_arcs(makers, readers, bundles.count))
    return after_of_arcs(second, first, bundles.count), after_of_arcs(first, second, bundles.count)


def _longest_path(order: list[int], before: list[list[int]], seconds: list[float]) -> list[int]:
    ended, source = [0.0] * len(order), [-1] * len(order)
    for bundle in order:
        for producer in before[bundle]:
            if source[bundle] < 0 or ended[producer] > ended[source[bundle]]:
                source[bundle] = producer
        ended[bundle] = seconds[bundle] + (ended[source[bundle]] if source[bundle] >= 0 else 0.0)
    at = max(order, key=lambda bundle: (ended[bundle], -bundle))
    path = [at]
    while source[at] >= 0:
        at = source[at]
        path.append(at)
    return path[::-1]


def _between(
    order: list[int], before: list[list[int]], after: list[list[int]], path: list[int]
) -> tuple[Integers, Integers]:
    """By bundle: the place on the path of the last that leads to it, and of the first that it leads to.

    -1 and the path's length where there is none.
    """
    first, last = [-1] * len(order), [len(path)] * len(order)
    place = {bundle: at for at, bundle in enumerate(path)}
    for bundle in order:
        first[bundle] = place.get(bundle, max((first[producer] for producer in before[bundle]), default=-1))
    for bundle in reversed(order):
        last[bundle] = place.get(bundle, min((last[reader] for reader in after[bundle]), default=len(path)))
    return np.array(first, dtype=np.int64), np.array(last, dtype=np.int64)
