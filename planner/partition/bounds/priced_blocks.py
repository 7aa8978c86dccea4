"""What a lone batch takes at least where blocks of work may be parted and each device is used once.

Blocks follow one another on a path. One that is parted has stages of its own, side by side, and what is outside parted
blocks runs between them, each on devices of its own. At any prices for devices, by kind, the cheapest choice of blocks
to part and of devices, less the price of all devices, is a bound (a Lagrangian relaxation). Prices go up where more
devices are used than there are, and down where fewer are, as long as that is worth it.

Stages beside one another end together at best, after some time within which a device runs no more of a block than some
of its bundles take together: what is one bundle is not divided.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from planner.partition.problem import Floats, Integers

# Blocks that may be parted; of others what is beside the path is not counted.
_MAX_BLOCKS = 256
# Kinds of devices that are told apart: more are taken to be as fast as the next faster one that is.
_MAX_KINDS = 8
# Sums of bundles that are told apart; with more, work is divided at will.
_MAX_SUMS = 64
_SAME = 1e-9
# Golden section of the price of a device's speed, then steps of a subgradient from there, ever shorter where they fail.
_SECTIONS, _STEPS, _SHORTER = 10, 160, 0.97


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Blocks:
    """Seconds on the fastest device, by block along a path: of all `before` it in turn, of bundles `beside` the path,
    of these and the path's own `within`, and of the least `message` inside. `bundles` [block]: seconds of each."""

    before: Floats
    beside: Floats
    within: Floats
    message: Floats
    bundles: tuple[Floats, ...]


class _Prices(NamedTuple):
    """What a choice of prices proves, and how many devices of each kind the cheapest choice uses."""

    seconds: float
    used: Floats


def priced_bound(several: Iterable[Blocks], path_seconds: float, slowness: Floats) -> float:
    """Of the same program, parted into blocks in several ways: the best. `slowness` [devices]: how many times the
    fastest device's seconds one takes at least."""
    best, start = path_seconds, None
    for blocks in map(_largest, several):
        if blocks.within.size:
            priced = _PricedBlocks(blocks, path_seconds + float(blocks.beside.sum()), slowness)
            seconds, prices = _by_speed(priced)
            if seconds > best:
                best, start = seconds, (priced, prices)
    return _by_kind(*start, best) if start is not None else best


def _by_speed(priced: _PricedBlocks) -> tuple[float, Floats]:
    """Seconds and prices, these in proportion to the devices' speed."""
    section, low, high = (math.sqrt(5) - 1) / 2, 0.0, priced.longest_block
    tried: list[tuple[float, float]] = []
    for _ in range(_SECTIONS):
        pair = [
            (priced.at(price * priced.speeds).seconds, price)
            for price in (high - section * (high - low), low + section * (high - low))
        ]
        low, high = (pair[0][1], high) if pair[0][0] < pair[1][0] else (low, pair[1][1])
        tried += pair
    best, price = max(tried)
    return best, price * priced.speeds


def _by_kind(priced: _PricedBlocks, prices: Floats, best: float) -> float:
    """Seconds, of what is proven already and what these prices and others lead to."""
    step = 0.5
    for _ in range(_STEPS):
        seconds, used = priced.at(prices)
        best, step = (seconds, step) if seconds > best else (best, step * _SHORTER)
        wanted = used - priced.counts
        if not wanted.any():
            break
        prices = np.maximum(0.0, prices + step * (priced.in_turn - seconds) / float(wanted @ wanted) * wanted)
    return best


def _largest(blocks: Blocks) -> Blocks:
    """Those with something beside the path, but for what is too many."""
    order = np.argsort(-blocks.beside, kind="stable")[:_MAX_BLOCKS]
    kept = np.sort(order[blocks.beside[order] > 0])
    left = blocks.beside.copy()
    left[kept] = 0.0
    before = blocks.before - np.concatenate([[0.0], np.cumsum(left)[:-1]])
    return Blocks(
        before=before[kept],
        beside=blocks.beside[kept],
        within=blocks.within[kept],
        message=blocks.message[kept],
        bundles=tuple(blocks.bundles[block] for block in kept.tolist()),
    )


class _PricedBlocks:
    """`speeds` of the kinds of devices, ascending to 1, and `counts` of devices; `in_turn`: seconds of all on one."""

    def __init__(self, blocks: Blocks, in_turn: float, slowness: Floats) -> None:
        self._blocks, self.in_turn, self.longest_block = blocks, in_turn, float(blocks.within.max())
        speeds, counts = np.unique(1 / slowness, return_counts=True)
        if speeds.size > _MAX_KINDS:
            tier = np.arange(speeds.size) * _MAX_KINDS // speeds.size
            speeds = np.array([speeds[tier == one].max() for one in range(_MAX_KINDS)])
            counts = np.bincount(tier, counts).astype(np.int64)
        self.speeds: Floats = speeds
        self.counts: Integers = counts
        ends, begins = blocks.before + blocks.within, np.append(blocks.before, in_turn)
        # [block or end, what is outside from]: seconds of what is outside, from 0 or from where a parted block ends.
        self._outside = np.maximum(begins[:, None] - np.concatenate([[0.0], ends])[None, :], 0.0)
        self._seconds, self._work = self._tables()

    def _tables(self) -> tuple[Floats, Floats]:
        """[blocks, times] seconds of stages beside one another, and [kinds, blocks, times] the most that a device runs
        in that time; none of a block whose work is divided at will."""
        known: dict[bytes, tuple[Floats, Floats]] = {}
        each = []
        for bundles in self._blocks.bundles:
            key = np.sort(bundles).tobytes()
            if key not in known:
                known[key] = self._table(bundles[bundles > 0])
            each.append(known[key])
        longest = max(1, *(times.size for times, _ in each))
        seconds = np.full((len(each), longest), np.inf)
        work = np.zeros((self.speeds.size, len(each), longest))
        for block, (times, runs) in enumerate(each):
            seconds[block, : times.size], work[:, block, : times.size] = times, runs
        return seconds, work

    def _table(self, bundles: Floats) -> tuple[Floats, Floats]:
        sums, within = _subset_sums(bundles), float(bundles.sum())
        if sums is None:
            return np.zeros(0), np.zeros((self.speeds.size, 0))
        times = np.unique(np.outer(1 / self.speeds, sums[sums > 0]))
        times = times[times <= within]
        runs = [sums[np.searchsorted(sums, times * speed * (1 + _SAME), side="right") - 1] for speed in self.speeds]
        # Each sum may have moved a little for each bundle.
        return times * (1 - _MAX_SUMS * _SAME), np.array(runs)

    def at(self, prices: Floats) -> _Prices:
        """Seconds for a device, by kind. O(blocks^2 x kinds)."""
        parted, kind, devices = self._parted(prices)
        outside = self._outside[:, :, None] / self.speeds + prices
        outside_kind, outside = outside.argmin(axis=2), outside.min(axis=2)
        num_blocks = parted.size
        until, come_from = 0.0, np.empty(num_blocks + 1, dtype=np.int64)
        # From 0, or from where a parted block ends.
        behind = np.zeros(num_blocks + 1)
        for block in range(num_blocks + 1):
            through = behind[: block + 1] + outside[block, : block + 1]
            come_from[block] = through.argmin()
            until = float(through[come_from[block]])
            behind[block + 1 : block + 2] = until + parted[block : block + 1]
        used, block = np.zeros(self.speeds.size), num_blocks
        used[outside_kind[block, come_from[block]]] += 1
        while come_from[block]:
            block = int(come_from[block]) - 1
            used[kind[block]] += devices[block]
            used[outside_kind[block, come_from[block]]] += 1
        return _Prices(until - float(prices @ self.counts), used)

    def _parted(self, prices: Floats) -> tuple[Floats, Integers, Floats]:
        """By block: seconds with the price of its devices, their kind, and how many.

        Devices beside one another run all of it, each at most what it runs in their time, and all are of the kind that
        runs most for its price.
        """
        blocks, places = self._blocks, np.arange(self._seconds.shape[0])
        of_work = np.full(self._work.shape, np.inf)
        np.divide(prices[:, None, None], self._work, out=of_work, where=self._work > 0)
        kind = of_work.argmin(axis=0)
        taken = self._taken(self._seconds) + of_work.min(axis=0) * blocks.within[:, None]
        time = taken.argmin(axis=1)
        kind, parted = kind[places, time], taken[places, time]
        devices = blocks.within / np.maximum(self._work[kind, places, time], 1e-300)
        divided = np.flatnonzero(~np.isfinite(self._seconds[:, 0]))
        if divided.size:
            kind[divided], devices[divided], parted[divided] = self._divided(prices, divided)
        # Or what is inside stays with what is outside, beside a stage that runs next to nothing.
        cheapest = int(prices.argmin())
        idle = blocks.within + 2 * blocks.message + prices[cheapest]
        kind, devices = np.where(idle < parted, cheapest, kind), np.where(idle < parted, 1.0, devices)
        return np.minimum(idle, parted), kind, devices

    def _taken(self, seconds: Floats) -> Floats:
        """[blocks, times] with messages, and at least what the path has inside, in turn."""
        blocks = self._blocks
        along = blocks.within - blocks.beside + blocks.message
        taken: Floats = np.maximum(seconds + 2 * blocks.message[:, None], along[:, None])
        return taken

    def _divided(self, prices: Floats, some: Integers) -> tuple[int, Floats, Floats]:
        """Of blocks whose work is divided at will: the kind of device, how many, and seconds with their price."""
        kind = int((prices / self.speeds).argmin())
        price = prices[kind] / self.speeds[kind]
        within, message = self._blocks.within[some], self._blocks.message[some]
        along = within - self._blocks.beside[some]
        enough = np.full(some.size, np.inf)
        np.divide(within, along - message, out=enough, where=along > message)
        fastest = np.sqrt(within / price) if price > 0 else np.full(some.size, np.inf)
        speed = np.maximum(1.0, np.minimum(np.minimum(fastest, enough), self.counts @ self.speeds))
        parted = np.maximum(within / speed + 2 * message, along + message) + price * speed
        return kind, speed / self.speeds[kind], parted


def _subset_sums(bundles: Floats) -> Floats | None:
    """Ascending, with 0; None if they are too many. Those that are the same but for rounding are the larger one."""
    sums = np.zeros(1)
    for seconds in bundles.tolist():
        both = np.sort(np.concatenate([sums, sums + seconds]))
        is_last = np.append(np.diff(both) > _SAME * both[1:], True)
        sums = both[is_last]
        if sums.size > _MAX_SUMS:
            return None
    return sums
