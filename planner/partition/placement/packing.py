"""A first placement that fits, from which a search can start; loads matter less here than memory and support."""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np

from planner.partition.problem import Floats, Integers

# Of items placed while trying, besides one for each: some tenths of a second.
MAX_TRIES = 20_000


class Packable(Protocol):
    """`seconds` [classes, items]: infinite where a device of the class cannot run the item; `held_bytes` [items];
    `class_of_device` and `device_bytes` [devices]."""

    @property
    def seconds(self) -> Floats: ...
    @property
    def held_bytes(self) -> Floats: ...
    @property
    def class_of_device(self) -> Integers: ...
    @property
    def device_bytes(self) -> Floats: ...


class Items(NamedTuple):
    """As in Packable."""

    seconds: Floats
    held_bytes: Floats
    class_of_device: Integers
    device_bytes: Floats


def first_packing(items: Packable) -> Integers | None:
    """[items] devices, by the first way of packing that fits; None if none does. O((items + tries) x devices)."""
    devices = _near(items, _in_order(items))
    if not fits(items, devices):
        devices = _tried(items)
    return devices if fits(items, devices) else None


def fits(items: Packable, devices: Integers) -> bool:
    """Every item on a device that supports it, and each device's bytes within its memory."""
    if (devices < 0).any():
        return False
    used_bytes = np.bincount(devices, weights=items.held_bytes, minlength=items.class_of_device.size)
    seconds = items.seconds[items.class_of_device[devices], np.arange(devices.size)]
    return bool(np.isfinite(seconds).all() and (used_bytes <= items.device_bytes).all())


def _in_order(items: Packable) -> Integers:
    """Items one after another, the next device at each device's share of them: neighbours stay together."""
    finite = np.where(np.isfinite(items.seconds), items.seconds, 0.0)
    runs = np.isfinite(items.seconds).sum(axis=1)
    speeds = np.where(runs > 0, runs / np.maximum(finite.sum(axis=1), 1e-300), 0.0)[items.class_of_device]
    filling = np.argsort(-speeds, kind="stable")
    ends = np.cumsum(speeds[filling] / speeds.max(initial=1e-300))
    work = items.seconds[:, : items.held_bytes.size].min(axis=0)
    # Nothing where no device runs it.
    work = np.where(np.isfinite(work), work, 0.0)
    share = (np.cumsum(work) - work / 2) / max(float(work.sum()), 1e-300) * ends[-1]
    devices: Integers = filling[np.minimum(np.searchsorted(ends, share), items.class_of_device.size - 1)]
    return devices


def _near(items: Packable, target: Integers) -> Integers:
    """Each item on its target, or on the device of the nearest number that has room; -1 from where none has."""
    devices, free = np.full(items.held_bytes.size, -1), items.device_bytes.copy()
    rows = np.arange(items.class_of_device.size)
    for item in range(items.held_bytes.size):
        allowed = np.isfinite(_seconds(items, item)) & (items.held_bytes[item] <= free)
        if not allowed.any():
            break
        device = int(np.argmin(np.where(allowed, abs(rows - target[item]), np.inf)))
        devices[item] = device
        free[device] -= items.held_bytes[item]
    return devices


def _tried(items: Packable) -> Integers:
    """Depth first, where the others ran into a corner: all packings, as far as tries go. -1 where there was none."""
    choices = np.isfinite(items.seconds)[items.class_of_device].sum(axis=0)
    order = np.lexsort((-items.held_bytes, choices)).tolist()
    devices, free = np.full(items.held_bytes.size, -1), items.device_bytes.copy()
    untried = [_tightest_last(items, order[0], free)]
    for _ in range(MAX_TRIES + items.held_bytes.size):
        item = order[len(untried) - 1]
        if devices[item] >= 0:
            free[devices[item]] += items.held_bytes[item]
            devices[item] = -1
        if untried[-1]:
            devices[item] = untried[-1].pop()
            free[devices[item]] -= items.held_bytes[item]
            if len(untried) == items.held_bytes.size:
                break
            untried.append(_tightest_last(items, order[len(untried)], free))
        else:
            untried.pop()
            if not untried:
                break
    return devices


def _tightest_last(items: Packable, item: int, free: Floats) -> list[int]:
    """Devices that can take the item, one of each class and number of free bytes, the fewest bytes last."""
    allowed = np.flatnonzero(np.isfinite(_seconds(items, item)) & (items.held_bytes[item] <= free))
    alike = {(float(free[device]), int(items.class_of_device[device])): device for device in allowed[::-1].tolist()}
    return [alike[key] for key in sorted(alike, reverse=True)]


def _seconds(items: Packable, item: int) -> Floats:
    seconds: Floats = items.seconds[items.class_of_device, item]
    return seconds
