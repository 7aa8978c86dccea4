"""Blocks of work along a longest path: what lies between two of its nodes, and what crosses their borders."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from planner.partition.arcs import topological_order
from planner.partition.bounds.longest_path import (
    between_path_nodes,
    longest_path,
    message_seconds,
    neighbours,
    passed_bytes,
    reads_of_bundles,
)
from planner.partition.problem import Floats, Integers, PartitionProblem
from planner.partition.program_orders import Bundles

# Blocks that may be parted; of others what is beside the path is not counted.
_MAX_BLOCKS = 256


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Blocks:
    """Seconds on the fastest device, by block along a path: of all `before` it in turn, of bundles `beside` the path,
    of these and the path's own `within`, and of the least `message` inside. `bundles` [block]: seconds of each.

    Bytes that a stage with some of a block inside, and neither end of it, `received` and `sent` at least. And the least
    that a node of the path gives the next, `given_within` a block and `given_before` it, the last [blocks + 1] with
    what is behind all blocks.
    """

    before: Floats
    beside: Floats
    within: Floats
    message: Floats
    bundles: tuple[Floats, ...]
    received: Floats
    sent: Floats
    given_within: Floats
    given_before: Floats

    def largest(self) -> Blocks:
        """Those with something beside the path, but for what is too many."""
        order = np.argsort(-self.beside, kind="stable")[:_MAX_BLOCKS]
        kept = np.sort(order[self.beside[order] > 0])
        left = self.beside.copy()
        left[kept] = 0.0
        before = self.before - np.concatenate([[0.0], np.cumsum(left)[:-1]])
        given = self._given()
        starts, ends = np.append(0, 2 * kept + 2), np.append(2 * kept + 1, given.size)
        return Blocks(
            before=before[kept],
            beside=self.beside[kept],
            within=self.within[kept],
            message=self.message[kept],
            bundles=tuple(self.bundles[block] for block in kept.tolist()),
            received=self.received[kept],
            sent=self.sent[kept],
            given_within=self.given_within[kept],
            given_before=np.array([given[start:end].min() for start, end in zip(starts, ends, strict=True)]),
        )

    def least_given(self) -> Floats:
        """[blocks + 1, blocks + 1]: the least bytes that a node of the path gives the next, from the end of the block
        before one block, or the path's beginning, to the beginning of another, or the path's end."""
        given, size = self._given(), self.within.size + 1
        least = np.full((size, size), np.inf)
        for block in range(size):
            least[block, : block + 1] = np.minimum.accumulate(given[2 * block :: -1])[::-2]
        return least

    def _given(self) -> Floats:
        """Before the first block, within it, before the second..."""
        given = np.empty(2 * self.within.size + 1)
        given[::2], given[1::2] = self.given_before, self.given_within
        return given


class PathBlocks:
    """Of a program: a longest path of its bundles, of which `longest_seconds` are in turn, and the blocks along it."""

    def __init__(self, problem: PartitionProblem, bundles: Bundles) -> None:
        fastest = problem.compute_seconds.min(axis=0)
        self._seconds: Floats = np.bincount(bundles.bundle_of_node, fastest, bundles.count).astype(np.float64)
        before, after = neighbours(problem, bundles)
        self._order = topological_order(before, after)
        self._path = longest_path(self._order, before, self._seconds.tolist())
        self._first, self._last = between_path_nodes(self._order, before, after, self._path)
        on_path = np.zeros(bundles.count, dtype=np.bool_)
        on_path[self._path] = True
        self._beside = np.flatnonzero(~on_path & (self._first >= 0) & (self._last < len(self._path)))
        reads = reads_of_bundles(problem, bundles)
        self._message, passed = message_seconds(problem, reads, bundles.count), passed_bytes(reads)
        self._given = np.array([passed[ends] for ends in zip(self._path, self._path[1:], strict=False)])
        self._read: list[list[tuple[int, float]]] = [[] for _ in range(bundles.count)]
        self._readers: list[list[tuple[int, float]]] = [[] for _ in range(bundles.count)]
        for (maker, reader), size in passed.items():
            self._read[reader].append((maker, size))
            self._readers[maker].append((reader, size))
        self._path_seconds = self._seconds[self._path]
        self.longest_seconds = float(self._path_seconds.sum())

    def within_each(self, spans: Sequence[int]) -> list[Blocks]:
        """Of the bundles that lie between path nodes at most so far apart, for ascending spans: where one adds some."""
        several: list[Blocks] = []
        num_before = 0
        for span in spans:
            near = self._beside[self._last[self._beside] - self._first[self._beside] <= span]
            if near.size > num_before:
                several.append(self._blocks(near))
            num_before = near.size
        return several

    def _blocks(self, near: Integers) -> Blocks:
        """Of these bundles, each within the nodes of the path that it lies between. Others lie in some block or in
        none: their messages count for each."""
        path, first, last = np.array(self._path), self._first[near], self._last[near]
        size = int(last.max()) + 1
        crossed = np.zeros(size + 1)
        np.add.at(crossed, first + 1, 1)
        np.add.at(crossed, last, -1)
        ends = np.flatnonzero(np.cumsum(crossed[:size]) == 0)
        starts, ends = ends[:-1], ends[1:]
        block_of = np.full(self._seconds.size, -1)
        block_of[near] = np.searchsorted(starts, first, side="right") - 1
        before = np.concatenate([[0.0], np.cumsum(self._path_seconds)])
        beside = np.bincount(block_of[near], self._seconds[near], starts.size).astype(np.float64)
        elsewhere = np.ones(self._seconds.size, dtype=np.bool_)
        elsewhere[near], elsewhere[path] = False, False
        message = np.minimum.reduceat(self._message[path][: ends[-1]], starts)
        np.minimum.at(message, block_of[near], self._message[near])
        places = np.arange(starts[0] + 1, ends[-1])
        inner = places[~np.isin(places, starts)]
        block_of[path[inner]] = np.searchsorted(starts, inner, side="right") - 1
        return Blocks(
            before=before[starts + 1] + np.concatenate([[0.0], np.cumsum(beside)[:-1]]),
            beside=beside,
            within=beside + before[ends] - before[starts + 1],
            message=np.minimum(message, self._message[elsewhere].min(initial=np.inf)),
            bundles=tuple(_by_block(self._seconds, block_of, starts.size)),
            received=_least_passed(self._order, self._read, block_of, self._last, starts),
            sent=_least_passed(self._order[::-1], self._readers, block_of, -self._first, -ends),
            given_within=np.minimum.reduceat(self._given[: ends[-1]], starts),
            given_before=np.concatenate(
                [
                    [self._given[: starts[0]].min(initial=np.inf)],
                    np.full(starts.size - 1, np.inf),
                    [self._given[ends[-1] :].min(initial=np.inf)],
                ]
            ),
        )


def _least_passed(
    order: Sequence[int],
    passed: Sequence[Sequence[tuple[int, float]]],
    block_of: Integers,
    place: Integers,
    border: Integers,
) -> Floats:
    """[blocks] bytes that come into a stage with a bundle of the block, at least: a chain of bundles leads to it from
    outside, and the stage takes it up somewhere. Of all chains the one whose least is the most, of all bundles the
    least.

    `passed` [bundle]: what it gets from others, each with its bytes, in an `order` that begins outside. Outside of a
    block are bundles whose `place` is no higher than its `border`.
    """
    most = np.zeros(block_of.size)
    least = np.full(border.size, np.inf)
    for bundle in order:
        block = block_of[bundle]
        if block >= 0:
            for other, size in passed[bundle]:
                if place[other] <= border[block]:
                    most[bundle] = max(most[bundle], size)
                elif block_of[other] == block:
                    most[bundle] = max(most[bundle], min(size, most[other]))
            least[block] = min(least[block], most[bundle])
    return least


def _by_block(seconds: Floats, block_of: Integers, count: int) -> list[Floats]:
    inside = np.flatnonzero(block_of >= 0)
    order = inside[np.argsort(block_of[inside], kind="stable")]
    return np.split(seconds[order], np.searchsorted(block_of[order], np.arange(1, count)))
