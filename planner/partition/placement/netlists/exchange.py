"""Whole contents of unlike devices exchanged: what no step of a few cells does. A bottleneck matching, exact."""

from __future__ import annotations

import numpy as np

from planner.partition.placement.netlists.netlist import Netlist
from planner.partition.problem import Booleans, Floats, Integers

_MOST_DEVICES = 256


def exchanged(netlist: Netlist, devices: Integers) -> Integers | None:
    """[cells] devices, the same cells together, with the least greatest load; None where all devices are alike.

    What a device pays depends on its own cells alone. O(devices^3 log devices) at worst, and O(classes x pins).
    """
    if netlist.num_devices > _MOST_DEVICES or np.unique(netlist.class_of_device).size < 2:
        return None
    cost = _costs(netlist, devices)
    used_bytes = np.bincount(devices, weights=netlist.held_bytes, minlength=netlist.num_devices)
    cost[used_bytes[:, None] > netlist.device_bytes] = np.inf
    levels = np.unique(cost[np.isfinite(cost)])
    low, high, best = 0, levels.size - 1, None
    while low <= high:
        middle = (low + high) // 2
        matching = _matched(cost <= levels[middle])
        if matching is None:
            low = middle + 1
        else:
            best, high = matching, middle - 1
    return None if best is None else best[devices]


def _costs(netlist: Netlist, devices: Integers) -> Floats:
    """[contents, devices] the load that the cells of one device are on another; inf where some cell cannot run."""
    num = netlist.num_devices
    touched = np.unique(netlist.net_of_pin * num + devices[netlist.net_cell])
    net, device = touched // num, touched % num
    apart = np.bincount(net, minlength=netlist.num_nets)[net] > 1
    loads = np.zeros((netlist.seconds.shape[0], num))
    for row, seconds, net_seconds in zip(loads, netlist.seconds, netlist.net_seconds, strict=True):
        np.add.at(row, devices, seconds)
        np.add.at(row, device[apart], net_seconds[net[apart]])
    return loads.T[:, netlist.class_of_device].copy()


def _matched(allowed: Booleans) -> Integers | None:
    """[contents] a device each, all different; None if there is no such choice. By augmenting paths."""
    contents_of_device = np.full(allowed.shape[1], -1)
    for contents in range(allowed.shape[0]):
        if not _augmented(allowed, contents_of_device, contents):
            return None
    device_of_contents = np.empty(allowed.shape[0], dtype=np.int64)
    device_of_contents[contents_of_device] = np.arange(contents_of_device.size)
    return device_of_contents


def _augmented(allowed: Booleans, contents_of_device: Integers, contents: int) -> bool:
    """Breadth first from `contents` to a free device; shifts the choices on the way."""
    reached_from = np.full(contents_of_device.size, -1)
    ring = [contents]
    while ring:
        source = ring.pop(0)
        new = np.flatnonzero(allowed[source] & (reached_from < 0))
        reached_from[new] = source
        free = new[contents_of_device[new] < 0]
        if free.size:
            _shift(contents_of_device, reached_from, int(free[0]), contents)
            return True
        ring.extend(contents_of_device[new].tolist())
    return False


def _shift(contents_of_device: Integers, reached_from: Integers, device: int, contents: int) -> None:
    while True:
        source = int(reached_from[device])
        before = np.flatnonzero(contents_of_device == source)
        contents_of_device[device] = source
        if source == contents:
            return
        device = int(before[0])
