"""Bounds on a lone batch by what lies between the nodes of a longest path, for any stages on any devices.

What has to run between two nodes of the path runs on one device, one after the other; or on several, and then it is at
best spread evenly, what runs apart waits for a message, and what the second of the two nodes is handed from elsewhere
is received by its device. Of disjoint stretches the times add up.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from planner.partition.arcs import topological_order
from planner.partition.bounds.longest_path import (
    between_path_nodes,
    least_of_links,
    longest_path,
    message_seconds,
    neighbours,
    reads_of_bundles,
)
from planner.partition.bounds.work import fair_weights
from planner.partition.ordered.hosts import distinct_rows
from planner.partition.problem import Floats, Integers, PartitionProblem
from planner.partition.program_orders import Bundles

# Places of the path that are looked at together; blocks that reach further are left out.
_STRETCH = 256
# How much more the device counts that the block is handed to at its end than it would if work were spread evenly.
_SHARES = (0.02, 0.05, 0.1, 0.2, 0.4, 0.8, 1.6)
_MARGIN = 1 - 1e-9


def path_bound(problem: PartitionProblem, bundles: Bundles) -> float:
    """Seconds of a lone batch: the longest path, each node where it runs fastest, or all work on all devices."""
    fastest = problem.compute_seconds.min(axis=0)
    seconds = np.bincount(bundles.bundle_of_node, fastest, bundles.count)
    before, after = neighbours(problem, bundles)
    path = longest_path(topological_order(before, after), before, seconds.tolist())
    return max(float(seconds[path].sum()), float(fastest.sum()) / problem.num_devices) * _MARGIN


def block_bound(problem: PartitionProblem, bundles: Bundles) -> float:
    """Not where nodes may run again. O(reads + nodes + path x _STRETCH)."""
    kinds = distinct_rows(problem.compute_seconds)
    rows = np.array([np.bincount(bundles.bundle_of_node, row, bundles.count) for row in kinds.rows])
    weights = fair_weights(kinds.rows, kinds.counts)
    weights = weights / (weights * kinds.counts).sum()
    before, after = neighbours(problem, bundles)
    order = topological_order(before, after)
    path = longest_path(order, before, rows.min(axis=0).tolist())
    first, last = between_path_nodes(order, before, after, path)
    # Place 0 stands before all nodes, and the last one behind them.
    on_path = np.array(path, dtype=np.int64)
    place = np.full(bundles.count, -1)
    place[on_path] = np.arange(1, on_path.size + 1)
    first[on_path], last[on_path] = first[on_path] - 1, last[on_path] + 1
    own = np.concatenate([[0.0], rows[:, path].min(axis=0), [0.0]])
    if not np.isfinite(own).all():
        return math.inf
    reads, latency = reads_of_bundles(problem, bundles), least_of_links(problem, problem.link_latency_seconds)
    message, handed = message_seconds(problem, reads, bundles.count), np.zeros(bundles.count)
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
