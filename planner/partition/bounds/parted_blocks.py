"""What a block of work takes whose bundles run side by side, on devices of one host or of several.

Between the stage with what is before the block and the one with what is behind it stand others, each on a device of its
own. Each receives a message and sends one, between hosts if need be, and runs some of the block's bundles: what is one
bundle is not divided. They end together at best, and within a time the class of devices that runs most for its price is
the cheapest.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from planner.partition.bounds.path_blocks import Blocks
from planner.partition.bounds.sites import Sites
from planner.partition.problem import Floats, Integers

# Sums of bundles that are told apart; with more, work is divided at will.
_MAX_SUMS = 64
_SAME = 1e-9


class Parted(NamedTuple):
    """[blocks, hosts before, hosts behind]: seconds with the price of its devices, their class, and how many."""

    seconds: Floats
    device_class: Integers
    devices: Floats


class PartedBlocks:
    """Ways to exchange messages: 0 with the stages before and behind on the same host, 1 with the one behind on
    another, 2 with the one before on another, 3 with both."""

    def __init__(self, blocks: Blocks, sites: Sites) -> None:
        self._within, self._speeds = blocks.within, sites.speeds
        self._all_speeds = float(sites.speeds @ sites.counts)
        hosts, host = np.arange(sites.num_hosts), sites.host[:, None, None]
        # [classes, hosts before, hosts behind]
        self._way = 2 * (host != hosts[:, None]) + (host != hosts)
        self._same_host = np.eye(hosts.size, dtype=np.bool_)[:, :, None]
        received = [links.seconds(blocks.received)[sites.host] for links in (sites.into, sites.across)]
        sent = [links.seconds(blocks.sent)[sites.host] for links in (sites.into, sites.out)]
        # [ways, classes, blocks]
        self._messages = np.stack([into + out for into in received for out in sent])
        # Some of the path is on a device of its own, whichever, or all is in turn with what is beside it.
        on_one_host, on_two = self._messages[0].min(axis=0), self._messages[1:].min(axis=(0, 1))
        along = blocks.within - blocks.beside + np.stack([on_one_host, on_two, on_two, on_one_host])
        # [ways, 1, blocks]
        self._along = along[:, None, :]
        sums = _table_of_sums(blocks.bundles)
        self._divided = np.flatnonzero(~np.isfinite(sums).any(axis=1) & (blocks.within > 0))
        # [ways, classes, blocks, sums]; each sum may have moved a little for each bundle.
        beside = sums / sites.speeds[:, None, None] * (1 - _MAX_SUMS * _SAME) + self._messages[..., None]
        self._seconds = np.maximum(beside, self._along[..., None])
        # What the path has more than they take may be with what is before and behind.
        elsewhere = np.subtract(self._seconds, beside, out=np.zeros(beside.shape), where=np.isfinite(beside))
        self._devices = np.maximum(blocks.within[:, None] - elsewhere, 0.0) / sums

    def at(self, prices: Floats) -> Parted:
        """Of devices, by class."""
        # A single one would be in turn with what is before and behind.
        price = np.maximum(prices[:, None, None] * self._devices, 2 * prices.min())
        taken = self._seconds + price
        at = taken.argmin(axis=3)[..., None]
        least = np.take_along_axis(taken, at, axis=3)[..., 0]
        devices = np.take_along_axis(self._devices, at, axis=3)[..., 0]
        if self._divided.size:
            least[:, :, self._divided], devices[:, :, self._divided] = self._divided_at_will(prices)
        every = np.arange(self._speeds.size)[:, None, None]
        # [classes, hosts before, hosts behind, blocks]
        taken, devices = least[self._way, every], devices[self._way, every]
        chosen = taken.argmin(axis=0)
        seconds, count = (np.take_along_axis(of, chosen[None], axis=0)[0] for of in (taken, devices))
        # Or what is inside stays with what is outside, beside a stage that runs next to nothing.
        cheapest = int(prices.argmin())
        idle = self._within + self._messages[0].min(axis=0) + prices[cheapest]
        is_idle = self._same_host & (idle < seconds)
        seconds = np.where(is_idle, idle, seconds)
        chosen, count = np.where(is_idle, cheapest, chosen), np.where(is_idle, 1.0, count)
        return Parted(*(np.moveaxis(of, 2, 0) for of in (seconds, chosen, count)))

    def _divided_at_will(self, prices: Floats) -> tuple[Floats, Floats]:
        """Of blocks with too many sums, [ways, classes, these]: seconds with the price of devices, and how many."""
        some = self._divided
        alone = self._within[some] / self._speeds[:, None]
        messages, along = self._messages[:, :, some], self._along[:, :, some]
        all_devices = self._within[some] / self._all_speeds
        least = np.maximum(np.maximum(np.sqrt(prices[:, None] * alone), along - messages), all_devices)
        devices = alone / np.minimum(least, alone)
        seconds = np.maximum(alone / devices + messages, along)
        return seconds + np.maximum(prices[:, None] * devices, 2 * prices.min()), devices


def _table_of_sums(several: tuple[Floats, ...]) -> Floats:
    """[blocks, sums] what some of a block's bundles take together, infinite behind the last; nothing where these are
    too many."""
    known: dict[bytes, Floats] = {}
    each = []
    for bundles in several:
        key = np.sort(bundles).tobytes()
        if key not in known:
            known[key] = _sums(bundles[bundles > 0])
        each.append(known[key])
    table = np.full((len(each), max(1, *(sums.size for sums in each))), np.inf)
    for own, sums in zip(table, each, strict=True):
        own[: sums.size] = sums
    return table


def _sums(bundles: Floats) -> Floats:
    """Ascending. Those that are the same but for rounding are the larger one."""
    sums = np.zeros(1)
    for seconds in bundles.tolist():
        both = np.sort(np.concatenate([sums, sums + seconds]))
        is_last = np.append(np.diff(both) > _SAME * both[1:], True)
        sums = both[is_last]
        if sums.size > _MAX_SUMS:
            return np.zeros(0)
    return sums[1:]
