"""What a lone batch takes at least where blocks of work may be parted and each device is used once.

Blocks follow one another on a path. One that is parted has stages of its own, side by side, and what is outside parted
blocks runs between them, each on a device of its own. At any prices for devices, by speed and host, the cheapest choice
of blocks to part and of devices, less the price of all devices, is a bound (a Lagrangian relaxation). Prices go up
where more devices are used than there are, and down where fewer are, as long as that is worth it.

The choice is a dynamic programme over blocks and the host of what is outside: who parts a block on devices of another
host waits for messages between hosts, and so does the path where what is outside goes on elsewhere.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from planner.partition.bounds.parted_blocks import Parted, PartedBlocks
from planner.partition.bounds.path_blocks import Blocks
from planner.partition.bounds.sites import Sites
from planner.partition.problem import Floats, Integers

# Golden section of the price of a device's speed, then steps of a subgradient from there, ever shorter where they fail.
_SECTIONS, _STEPS, _SHORTER = 10, 160, 0.97


class _Prices(NamedTuple):
    """What a choice of prices proves, and how many devices of each class the cheapest choice uses."""

    seconds: float
    used: Floats


def priced_bound(several: Iterable[Blocks], path_seconds: float, sites: Sites) -> float:
    """Of the same program, parted into blocks in several ways: the best."""
    best, start = path_seconds, None
    for blocks in several:
        kept = blocks.largest()
        if kept.within.size:
            priced = _PricedBlocks(kept, path_seconds + float(blocks.beside.sum()), sites)
            seconds, prices = _by_speed(priced)
            if seconds > best:
                best, start = seconds, (priced, prices)
    return _by_class(*start, best) if start is not None else best


def _by_speed(priced: _PricedBlocks) -> tuple[float, Floats]:
    """Seconds and prices, these in proportion to the devices' speed."""
    section, low, high = (math.sqrt(5) - 1) / 2, 0.0, priced.longest_block
    # Where devices are many, nothing is the best price.
    tried = [(priced.at(0.0 * priced.sites.speeds).seconds, 0.0)]
    for _ in range(_SECTIONS):
        pair = [
            (priced.at(price * priced.sites.speeds).seconds, price)
            for price in (high - section * (high - low), low + section * (high - low))
        ]
        low, high = (pair[0][1], high) if pair[0][0] < pair[1][0] else (low, pair[1][1])
        tried += pair
    best, price = max(tried)
    return best, price * priced.sites.speeds


def _by_class(priced: _PricedBlocks, prices: Floats, best: float) -> float:
    """Seconds, of what is proven already and what these prices and others lead to."""
    step = 0.5
    for _ in range(_STEPS):
        seconds, used = priced.at(prices)
        best, step = (seconds, step) if seconds > best else (best, step * _SHORTER)
        wanted = used - priced.sites.counts
        if not wanted.any():
            break
        prices = np.maximum(0.0, prices + step * (priced.in_turn - seconds) / float(wanted @ wanted) * wanted)
    return best


class _PricedBlocks:
    """`in_turn`: seconds of all on one device."""

    def __init__(self, blocks: Blocks, in_turn: float, sites: Sites) -> None:
        self.sites, self.in_turn, self.longest_block = sites, in_turn, float(blocks.within.max())
        self._parted = PartedBlocks(blocks, sites)
        ends, begins = blocks.before + blocks.within, np.append(blocks.before, in_turn)
        # [block or end, what is outside from]: seconds of what is outside, from 0 or from where a parted block ends.
        self._outside = np.maximum(begins[:, None] - np.concatenate([[0.0], ends])[None, :], 0.0)
        # [as before, hosts]: ... and of the message where it moves to a host from another.
        self._crossing = np.moveaxis(sites.across.seconds(blocks.least_given()), 0, 2)

    def at(self, prices: Floats) -> _Prices:
        """Seconds for a device, by class. O(blocks x (blocks + hosts^2) x classes)."""
        sites, parted = self.sites, self._parted.at(prices)
        num_blocks, hosts = parted.seconds.shape[0], np.arange(sites.num_hosts)
        cheapest = np.minimum.reduceat(prices, sites.firsts)
        # [from, hosts]: seconds until what is outside begins, on a host.
        until = np.zeros((num_blocks + 1, hosts.size))
        # ... and with a device of another host.
        elsewhere = np.empty(until.shape)
        elsewhere[0] = _least_of_others(cheapest)
        walk = _Walk.of(num_blocks, hosts.size)
        for block in range(num_blocks + 1):
            own = self._outside[block, : block + 1, None] / sites.speeds + prices
            own, begun = np.minimum.reduceat(own, sites.firsts, axis=1), until[: block + 1]
            stays = begun + own
            # All of it is on the quicker one of two devices, at best.
            moves = np.minimum(elsewhere[: block + 1] + own, _least_of_others(stays) + cheapest)
            moves += self._crossing[block, : block + 1]
            through = np.minimum(stays, moves)
            since = through.argmin(axis=0)
            walk.since[block], walk.moves[block] = since, (moves < stays)[since, hosts]
            ended = through[since, hosts]
            if block < num_blocks:
                next_begun = ended[:, None] + parted.seconds[block]
                walk.host_before[block], until[block + 1] = next_begun.argmin(axis=0), next_begun.min(axis=0)
                elsewhere[block + 1] = _least_of_others(until[block + 1] + cheapest)
        used = self._used(prices, parted, until, walk, int(ended.argmin()))
        return _Prices(float(ended.min()) - float(prices @ sites.counts), used)

    def _used(self, prices: Floats, parted: Parted, until: Floats, walk: _Walk, host: int) -> Floats:
        """Devices by class, of what ends on this host."""
        used, block = np.zeros(prices.size), until.shape[0] - 1
        while True:
            since = int(walk.since[block, host])
            own = self._outside[block, since] / self.sites.speeds + prices
            here, there = self.sites.host == host, self.sites.host != host
            if walk.moves[block, host]:
                begun = until[since, self.sites.host]
                # What is outside is on a device of the host before, or on one of this.
                ways = (begun + prices, own), (begun + own, prices)
                before, now = min(ways, key=lambda way: float(way[0][there].min() + way[1][here].min()))
                first = _least(before, there)
                used[[first, _least(now, here)]] += 1
                host = int(self.sites.host[first])
            else:
                used[_least(own, here)] += 1
            if not since:
                return used
            block, behind = since - 1, host
            host = int(walk.host_before[block, behind])
            used[parted.device_class[block, host, behind]] += parted.devices[block, host, behind]


class _Walk(NamedTuple):
    """The cheapest choice, to be followed backwards. [block or end, hosts]: `since` which block's end all is outside
    (0: the beginning), and whether it `moves` to this host on the way. `host_before` [blocks, hosts]: the host before a
    parted block, by the one behind it."""

    since: Integers
    moves: np.ndarray
    host_before: Integers

    @classmethod
    def of(cls, num_blocks: int, num_hosts: int) -> _Walk:
        since = np.zeros((num_blocks + 1, num_hosts), dtype=np.int64)
        return cls(since, np.zeros(since.shape, dtype=np.bool_), np.zeros((num_blocks, num_hosts), dtype=np.int64))


def _least(values: Floats, some: np.ndarray) -> int:
    return int(np.where(some, values, np.inf).argmin())


def _least_of_others(values: Floats) -> Floats:
    """[..., i]: the least of all but the i-th; infinite where there is no other."""
    if values.shape[-1] == 1:
        return np.full(values.shape, np.inf)
    both = np.partition(values, 1, axis=-1)
    return np.where(values == both[..., :1], both[..., 1:2], both[..., :1])
