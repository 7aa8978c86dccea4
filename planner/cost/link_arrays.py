"""What a message between any two devices of an inventory takes, as arrays."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from planner.cost.inventory import Inventory
from planner.cost.messages import measured_messages, message_of
from planner.cost.sources import CostSource
from planner.cost.work import Floats


def link_arrays(inventory: Inventory, sources: Sequence[CostSource]) -> tuple[Floats, Floats, Floats]:
    """[source, target] latency, seconds per byte and handover, 0 on the diagonal: `link_between` and `handover_between`
    of all pairs."""
    devices, size = inventory.devices, len(inventory.devices)
    latency = np.full((size, size), inventory.default_link.latency_seconds)
    per_byte = np.full((size, size), 1.0 / inventory.default_link.bytes_per_second)
    handover = np.zeros((size, size))
    measured = measured_messages(inventory, sources)
    if measured:
        seconds = np.array([message_of(device, measured) for device in devices])
        hosts = np.unique([device.host for device in devices], return_inverse=True)[1]
        is_measured = (hosts[:, None] == hosts) & (np.minimum.outer(seconds, seconds) >= 0)
        ends = np.maximum.outer(seconds, seconds)
        latency, handover = np.where(is_measured, ends, latency), np.where(is_measured, ends, handover)
    index = {device.id: position for position, device in enumerate(devices)}
    for (source, target), link in inventory.links.items():
        latency[index[source], index[target]] = link.latency_seconds
        per_byte[index[source], index[target]] = 1.0 / link.bytes_per_second
        handover[index[source], index[target]] = 0.0
    for array in (latency, per_byte, handover):
        np.fill_diagonal(array, 0.0)
    return latency, per_byte, handover
