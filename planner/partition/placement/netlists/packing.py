"""A first placement that fits, from which a search can start; loads matter less here than memory and support."""

from __future__ import annotations

import numpy as np

from planner.partition.placement.netlists.netlist import Netlist
from planner.partition.problem import Floats, Integers

# Of cells placed while trying, besides one for each: some tenths of a second.
MAX_TRIES = 20_000


def first_packing(netlist: Netlist) -> Integers | None:
    """[cells] devices, by the first way of packing that fits; None if none does. O((cells + tries) x devices)."""
    devices = _near(netlist, _in_order(netlist))
    if not fits(netlist, devices):
        devices = _tried(netlist)
    return devices if fits(netlist, devices) else None


def fits(netlist: Netlist, devices: Integers) -> bool:
    """Every cell on a device that supports it, and each device's bytes within its memory."""
    if (devices < 0).any():
        return False
    used_bytes = np.bincount(devices, weights=netlist.held_bytes, minlength=netlist.num_devices)
    seconds = netlist.seconds[netlist.class_of_device[devices], np.arange(devices.size)]
    return bool(np.isfinite(seconds).all() and (used_bytes <= netlist.device_bytes).all())


def _in_order(netlist: Netlist) -> Integers:
    """Cells one after another, the next device at each device's share of them: neighbours stay together."""
    finite = np.where(np.isfinite(netlist.seconds), netlist.seconds, 0.0)
    runs = np.isfinite(netlist.seconds).sum(axis=1)
    speeds = np.where(runs > 0, runs / np.maximum(finite.sum(axis=1), 1e-300), 0.0)[netlist.class_of_device]
    filling = np.argsort(-speeds, kind="stable")
    ends = np.cumsum(speeds[filling] / speeds.max(initial=1e-300))
    work = netlist.seconds[:, : netlist.num_cells].min(axis=0)
    share = (np.cumsum(work) - work / 2) / max(float(work.sum()), 1e-300) * ends[-1]
    devices: Integers = filling[np.minimum(np.searchsorted(ends, share), netlist.num_devices - 1)]
    return devices


def _near(netlist: Netlist, target: Integers) -> Integers:
    """Each cell on its target, or on the device of the nearest number that has room; -1 from where none has."""
    devices, free = np.full(netlist.num_cells, -1), netlist.device_bytes.copy()
    rows = np.arange(netlist.num_devices)
    for cell in range(netlist.num_cells):
        allowed = np.isfinite(_seconds(netlist, cell)) & (netlist.held_bytes[cell] <= free)
        if not allowed.any():
            break
        device = int(np.argmin(np.where(allowed, abs(rows - target[cell]), np.inf)))
        devices[cell] = device
        free[device] -= netlist.held_bytes[cell]
    return devices


def _tried(netlist: Netlist) -> Integers:
    """Depth first, where the others ran into a corner: all packings, as far as tries go. -1 where there was none."""
    choices = np.isfinite(netlist.seconds)[netlist.class_of_device].sum(axis=0)
    order = np.lexsort((-netlist.held_bytes, choices)).tolist()
    devices, free = np.full(netlist.num_cells, -1), netlist.device_bytes.copy()
    untried = [_tightest_last(netlist, order[0], free)]
    for _ in range(MAX_TRIES + netlist.num_cells):
        cell = order[len(untried) - 1]
        if devices[cell] >= 0:
            free[devices[cell]] += netlist.held_bytes[cell]
            devices[cell] = -1
        if untried[-1]:
            devices[cell] = untried[-1].pop()
            free[devices[cell]] -= netlist.held_bytes[cell]
            if len(untried) == netlist.num_cells:
                break
            untried.append(_tightest_last(netlist, order[len(untried)], free))
        else:
            untried.pop()
            if not untried:
                break
    return devices


def _tightest_last(netlist: Netlist, cell: int, free: Floats) -> list[int]:
    """Devices that can take the cell, one of each class and number of free bytes, the fewest bytes last."""
    allowed = np.flatnonzero(np.isfinite(_seconds(netlist, cell)) & (netlist.held_bytes[cell] <= free))
    alike = {(float(free[device]), int(netlist.class_of_device[device])): device for device in allowed[::-1].tolist()}
    return [alike[key] for key in sorted(alike, reverse=True)]


def _seconds(netlist: Netlist, cell: int) -> Floats:
    seconds: Floats = netlist.seconds[netlist.class_of_device, cell]
    return seconds
