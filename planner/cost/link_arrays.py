"""What a message between any two devices of an inventory takes, as arrays."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from planner.cost.inventory import Inventory
from planner.cost.messages import measured_messages, message_of
from planner.cost.sources import CostSource
from planner.cost.work import Floats


def link_arrays(inventory: Inventory, sources: Sequence[CostSource]) -> tuple[Floats, Floats]:
    """[source, target] latency and seconds per byte, 0 on the diagonal: `link_between` of all pairs."""
    devices, size = inventory.devices, len(inventory.devices)
    latency = np.full((size, size), inventory.default_link.latency_seconds)
    per_byte = np.full((size, size), 1.0 / inventory.default_link.bytes_per_second)
    measured = measured_messages(inventory, sources)
    if measured:
        seconds = np.array([message_of(device, measured) for device in devices])
        hosts = np.unique([device.host for device in devices], return_inverse=True)[1]
        is_measured = (hosts[:, None] == hosts) & (np.minimum.outer(seconds, seconds) >= 0)
        latency = np.where(is_measured, np.maximum.outer(seconds, seconds), latency)
    index = {device.id: position for position, device in enumerate(devices)}
    for (source, target), link in inventory.links.items():
        latency[index[source], index[target]] = link.latency_seconds
        per_byte[index[source], index[target]] = 1.0 / link.bytes_per_second
    np.fill_diagonal(latency, 0.0)
    np.fill_diagonal(per_byte, 0.0)
    return latency, per_byte
