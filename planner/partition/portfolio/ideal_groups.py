"""Order ideals in groups, where they are too many: a stage between two groups costs what every stage from an ideal of
the one to an ideal of the other costs at least.

A group's ideals hold equally many bundles of a path, and much the same work. Where work comes in large pieces there are
few amounts of work that ideals hold, so that groups are narrow: in a network's layers one after the other, most ideals
of a group differ in what is cheap.

What is left out of a program for its ideals to be fewer still has its work done, once all is there that it reads, and
before what reads it. So an ideal stands in all groups that hold as much more as may be done beside it, as if such work
could be divided at will.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np

from planner.partition.arcs import grouped, nearest_kept, topological_order
from planner.partition.lattice import Words
from planner.partition.ordered.hosts import distinct_rows
from planner.partition.portfolio.ideal_stages import Exchanges
from planner.partition.portfolio.paths import Path
from planner.partition.problem import Booleans, Floats, Integers, PartitionProblem
from planner.partition.program_orders import Bundles

# Halvings of the width of a group.
_HALVINGS = 12


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Work:
    """`kind_of_device` [devices]. Of those kinds: `seconds` [bundles, kinds], 0 where the kind cannot run all of it,
    and `barred` [bundles, kinds] nodes that it cannot run. The first kind is the fastest.

    What is left out, by item: `beside_seconds` [items] of the first kind. An item may be done once all bundles of its
    `ancestors` are, and is done before any of its `descendants`. Each part of it takes a kind `at_will` [kinds] times
    the first kind's seconds at least.
    """

    kind_of_device: Integers
    seconds: Floats
    barred: Floats
    beside_seconds: Floats
    ancestors: tuple[tuple[int, ...], ...]
    descendants: tuple[tuple[int, ...], ...]
    at_will: Floats

    @property
    def beside_share(self) -> float:
        """Of the first kind's seconds."""
        beside = float(self.beside_seconds.sum())
        return beside / max(beside + float(self.seconds[:, 0].sum()), 1e-300)


def work_of(problem: PartitionProblem, bundles: Bundles, left_out: Booleans) -> Work:
    """`left_out` [bundles]; the others are numbered as if they were not there. O(arcs x left out)."""
    kinds = distinct_rows(problem.work_seconds)
    finite = np.where(np.isinf(kinds.rows), 0.0, kinds.rows)
    fastest_first = np.argsort(finite.sum(axis=1), kind="stable")
    seconds, barred = np.zeros((2, bundles.count, fastest_first.size))
    np.add.at(seconds, bundles.bundle_of_node, finite[fastest_first].T)
    np.add.at(barred, bundles.bundle_of_node, np.isinf(kinds.rows[fastest_first]).T)
    place, order = np.cumsum(~left_out) - 1, topological_order(bundles.before, bundles.after)
    before = nearest_kept(bundles.before, order, left_out.tolist())
    after = nearest_kept(bundles.after, order[::-1], left_out.tolist())
    items: dict[tuple[frozenset[int], frozenset[int]], float] = defaultdict(float)
    beside = np.flatnonzero(left_out & (seconds[:, 0] > 0))
    beside, at_will = _best_counted(beside, seconds[beside])
    for bundle in beside.tolist():
        items[before[bundle], after[bundle]] += float(seconds[bundle, 0])
    return Work(
        kind_of_device=np.argsort(fastest_first)[kinds.kind_of_row],
        seconds=seconds[~left_out],
        barred=barred[~left_out],
        beside_seconds=np.array(list(items.values()), dtype=np.float64),
        ancestors=tuple(tuple(place[sorted(ancestors)].tolist()) for ancestors, _ in items),
        descendants=tuple(tuple(place[sorted(descendants)].tolist()) for _, descendants in items),
        at_will=at_will,
    )


def _best_counted(bundles: Integers, seconds: Floats) -> tuple[Integers, Floats]:
    """(bundles, at_will) of those that are worth the most together. What takes all kinds the same, as a launch does,
    makes all that is divided with it take them the same: so it may be better not to count it."""
    if not bundles.size:
        return bundles, np.zeros(seconds.shape[1])
    times = seconds / seconds[:, :1]
    usual = np.maximum(seconds.sum(axis=0) / seconds[:, 0].sum(), 1e-300)
    order = np.argsort((times / usual).sum(axis=1), kind="stable")
    counted = np.cumsum(seconds[order[::-1], 0])[::-1]
    at_will = np.minimum.accumulate(times[order[::-1]])[::-1]
    first = int((counted * (at_will / usual).sum(axis=1)).argmax())
    return bundles[np.sort(order[first:])], at_will[first]


class Held:
    """What each ideal holds: `num_of_path` bundles of the path, `seconds` of work and `barred` [ideals, kinds] nodes;
    and `least` to `most` [ideals] of the first kind's seconds with what may be done beside it.
    O(ideals x (bundles + items beside))."""

    def __init__(self, words: Words, work: Work, path: Path) -> None:
        from planner.partition.portfolio.ideal_groups_kernel import work_beside

        on_path = np.zeros((work.seconds.shape[0], 1))
        on_path[list(path.bundles)] = 1.0
        by_bundle = np.concatenate([work.seconds, work.barred, on_path], axis=1)
        held, kinds = sums_of_ideals(words, by_bundle), work.seconds.shape[1]
        self.seconds: Floats = held[:, :kinds]
        self.barred: Floats = np.rint(held[:, kinds:-1])
        self.num_of_path: Integers = np.rint(held[:, -1]).astype(np.int64)
        self.least, self.most = self.seconds[:, 0].copy(), self.seconds[:, 0].copy()
        work_beside(words, work.beside_seconds, *_flat(work.ancestors), *_flat(work.descendants), self.least, self.most)


def sums_of_ideals(words: Words, by_bundle: Floats) -> Floats:
    """[ideals, rows] of what is [bundles, rows], over the bundles of each ideal."""
    from planner.partition.portfolio.ideal_groups_kernel import sums

    held = np.zeros((words.shape[0], by_bundle.shape[1]))
    sums(words, by_bundle, held)
    return held


def _flat(sets: tuple[tuple[int, ...], ...]) -> tuple[Integers, Integers]:
    """Where each begins, and where the last ends; and their members."""
    begin = np.cumsum([0, *map(len, sets)])
    return begin, np.array([member for members in sets for member in members], dtype=np.int64)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Groups:
    """Of ideals: entry e is the ideal `ideal` [entries], which stands in all groups from `first` to `last` [entries].

    Groups ascend with what is held. Each is of ideals with `num_of_path` [groups] bundles of the path and the fastest
    kind's seconds from `low` to `high` [groups]. The first holds nothing, the last everything.
    """

    ideal: Integers
    first: Integers
    last: Integers
    num_of_path: Integers
    low: Floats
    high: Floats

    @property
    def count(self) -> int:
        return self.low.size


def in_groups(held: Held, most: int) -> Groups:
    """`most` groups or a few more than there are levels of the path, as narrow as they can be."""
    least, greatest, level = held.least, held.most, held.num_of_path
    size, whole = level.size, float(held.most[-1])
    # The empty ideal and the whole are by themselves; beside each, something that is left out may be done or not. What
    # holds something that waits for a bundle which is left out, and not all that this waits for, is no ideal of the
    # whole program: without a bundle of several nodes, nobody waits for all of them.
    at = np.arange(size)
    inner = at[((at > 0) | (greatest > 0)) & ((at < size - 1) | (least < whole)) & (least <= greatest)]
    order = inner[np.lexsort((least[inner], level[inner]))]
    segments = _segments(level[order], least[order], greatest[order])
    narrow, wide = 0.0, 2 * whole
    levels, low, high = _tiled(*segments, wide)
    for _ in range(_HALVINGS):
        width = (narrow * wide) ** 0.5 if narrow else wide / 1024
        tiles = _tiled(*segments, width, most)
        if tiles[0].size <= most:
            (levels, low, high), wide = tiles, width
        else:
            narrow = width
    # Of each entry, among the tiles of its level.
    key = np.stack([levels, low])
    first = _last_up_to(key, level[inner], least[inner])
    last = _last_up_to(key, level[inner], greatest[inner])
    return Groups(
        ideal=np.concatenate([[0], inner, [size - 1]]),
        first=np.concatenate([[0], first + 1, [low.size + 1]]),
        last=np.concatenate([[0], last + 1, [low.size + 1]]),
        num_of_path=np.concatenate([[0], levels, [level[-1]]]),
        low=np.concatenate([[0.0], low, [whole]]),
        high=np.concatenate([[0.0], high, [whole]]),
    )


def _segments(level: Integers, least: Floats, most: Floats) -> tuple[Integers, Floats, Floats]:
    """(level, from, to) of what intervals cover together, which ascend by level, then by their least."""
    # Levels one behind the other.
    shift = level * (2.0 * most.max(initial=0.0))
    covered = np.maximum.accumulate(most + shift)
    is_new = (level[1:] != level[:-1]) | (least[1:] + shift[1:] > covered[:-1])
    begins = np.flatnonzero(np.append(True, is_new)[: level.size])
    return level[begins], least[begins], np.maximum.reduceat(most, begins) if begins.size else most


def _tiled(
    level: Integers, low: Floats, high: Floats, width: float, most: float = np.inf
) -> tuple[Integers, Floats, Floats]:
    """(level, from, to) of tiles over the segments of each level, each as wide as may be; some, if more than `most`."""
    levels, lows, highs = list[int](), list[float](), list[float]()
    begins = np.flatnonzero(np.diff(level, prepend=-1)).tolist()
    for begin, end in pairwise([*begins, level.size]):
        at, start = begin, float(low[begin])
        while at < end and len(levels) <= most:
            stop = start + width
            # The last segment that the tile reaches, and whether it goes on behind the tile.
            reached = begin + int(np.searchsorted(low[begin:end], stop, side="right")) - 1
            levels.append(int(level[begin]))
            lows.append(start)
            highs.append(min(stop, float(high[reached])))
            at = reached if high[reached] > stop else reached + 1
            if at < end:
                start = max(stop, float(low[at]))
    return np.array(levels, dtype=np.int64), np.array(lows), np.array(highs)


def _last_up_to(tiles: Floats, level: Integers, seconds: Floats) -> Integers:
    """By pair (level, seconds): the last tile of the level that begins no later."""
    levels, low = tiles
    last = np.empty(level.size, dtype=np.int64)
    for own in np.unique(level).tolist():
        begin, end = np.searchsorted(levels, [own, own + 1])
        those = level == own
        last[those] = begin + np.maximum(np.searchsorted(low[begin:end], seconds[those], side="right") - 1, 0)
    return last


class GroupStages:
    """Between groups, at least: see Stages in `least_over_stages`. O(entries x (reads + groups)), then by stage."""

    def __init__(
        self, problem: PartitionProblem, bundles: Bundles, words: Words, work: Work, held: Held, groups: Groups
    ) -> None:
        self._problem, self._bundles, self._words, self._groups = problem, bundles, words, groups
        self._kind_of_device, self._at_will = work.kind_of_device, work.at_will
        self._entries = groups.ideal, groups.first, groups.last
        self._more = self.extremes(held.seconds - work.at_will * held.seconds[:, :1])
        self._barred = self.extremes(held.barred)

    def extremes(self, amount: Floats) -> tuple[Floats, Floats]:
        """[rows, groups] the least and the most of an amount [ideals, rows]."""
        from planner.partition.portfolio.ideal_groups_kernel import extremes

        least, most = np.empty((2, amount.shape[1], self._groups.count))
        extremes(*self._entries, np.ascontiguousarray(amount), least, most)
        return least, most

    @property
    def count(self) -> int:
        return self._groups.count

    def num_held(self, path: Path) -> Integers:
        return self._groups.num_of_path

    def within(self, limit: float) -> tuple[Integers, Integers]:
        from planner.partition.portfolio.ideal_groups_kernel import pairs_within

        groups, limit = self._groups, min(limit * (1 + 1e-9), np.finfo(np.float64).max)
        return pairs_within(groups.low, groups.high, *self._more, self._at_will, groups.num_of_path, limit)

    def seconds(self, devices: Integers, starts: Integers, ends: Integers) -> Floats:
        # Devices are many, and kinds few.
        kinds, kind_of = np.unique(self._kind_of_device[devices], return_inverse=True)
        (least, most), (least_barred, most_barred) = self._more, self._barred
        seconds = self._at_will[kinds, None] * (self._groups.low[ends] - self._groups.high[starts])
        seconds = np.maximum(seconds + least[kinds][:, ends] - most[kinds][:, starts], 0.0)
        seconds[least_barred[kinds][:, ends] > most_barred[kinds][:, starts]] = np.inf
        of_devices: Floats = seconds[kind_of]
        return of_devices

    def exchanges(self, starts: Integers, ends: Integers) -> Exchanges:
        received, sent = self._exchanged[0][starts, ends], self._exchanged[1][ends, starts]
        return Exchanges(received_bytes=received, sent_bytes=sent, receives=received > 0, sends=sent > 0)

    def between_neighbours(self, starts: Integers, ends: Integers, unlinked: Booleans) -> None:
        """The stage before may hold nothing but what is left out."""
        return None

    def peak_bytes(self, starts: Integers, ends: Integers) -> Floats:
        """Of states, each with the first node that uses it; of what the most demanding node reads and makes; and of
        buffers."""
        received, sent = self._exchanged[0][starts, ends], self._exchanged[1][ends, starts]
        # What is relayed through a stage is buffered once.
        buffered = np.maximum(received, sent) if self._problem.relay else received + sent
        peak: Floats = self._states[starts + 1, ends] + self._largest[starts + 1, ends]
        return peak + self._problem.microbatches_in_flight * buffered

    @cached_property
    def _states(self) -> Floats:
        """[start + 1, end] bytes of those that no ideal of the start holds, and all of the end do."""
        problem = self._problem
        user = np.full(problem.whole_state_bytes.size, -1, dtype=np.int64)
        user[problem.use_state[::-1]] = self._bundles.bundle_of_node[problem.use_node[::-1]]
        table = self._by_bundle(np.add, user[user >= 0], problem.whole_state_bytes[user >= 0])
        return np.cumsum(np.cumsum(table[::-1], axis=0)[::-1], axis=1)

    @cached_property
    def _largest(self) -> Floats:
        """[start + 1, end] bytes that live at once at one of such nodes: storages that it makes, and of each that it
        reads as much as a stage is given that holds no more of it."""
        problem = self._problem
        root = problem.value_root[problem.read_value]
        given = np.minimum(problem.root_bytes[root], problem.value_bytes[problem.read_value])
        own = np.flatnonzero(problem.root_producer >= 0)
        live = np.zeros(problem.num_nodes)
        np.add.at(live, problem.root_producer[own], problem.root_bytes[own])
        pairs, pair_of_read = np.unique(np.stack([problem.read_node, root]), axis=1, return_inverse=True)
        largest = np.zeros(pairs.shape[1])
        np.maximum.at(largest, pair_of_read.reshape(-1), given)
        np.add.at(live, pairs[0], largest)
        table = self._by_bundle(np.maximum, self._bundles.bundle_of_node, live)
        return np.maximum.accumulate(np.maximum.accumulate(table[::-1], axis=0)[::-1], axis=1)

    def _by_bundle(self, put: np.ufunc, bundle: Integers, num_bytes: Floats | Integers) -> Floats:
        """[first group that may hold a bundle, first from which on all do] what is put together of its bytes."""
        first, certain = self._first_and_certain
        table = np.zeros((self.count + 1, self.count + 1))
        put.at(table, (first[bundle], certain[bundle]), num_bytes)
        return table

    @cached_property
    def _first_and_certain(self) -> tuple[Integers, Integers]:
        from planner.partition.portfolio.ideal_groups_kernel import first_and_certain

        return first_and_certain(self._words, *self._entries, self._bundles.count)

    @cached_property
    def _exchanged(self) -> tuple[Floats, Floats]:
        """Bytes received [start, end], and sent [end, start]."""
        from planner.partition.portfolio.ideal_groups_kernel import least_exchanged

        problem, bundles = self._problem, self._bundles
        producer = problem.value_producer
        maker = np.where(producer >= 0, bundles.bundle_of_node[np.maximum(producer, 0)], -1)
        reads = np.stack([problem.read_value, bundles.bundle_of_node[problem.read_node]])
        value, reader = map(np.ascontiguousarray, np.unique(reads, axis=1))
        received, sent = np.empty((2, self.count, self.count))
        least_exchanged(
            self._words, *self._entries, *self._first_and_certain, maker, problem.value_bytes.astype(np.float64),
            *grouped(value, reader, problem.num_values), problem.value_returned, problem.relay, received, sent,
        )  # fmt: skip
        received[0] = 0.0
        return received, sent
