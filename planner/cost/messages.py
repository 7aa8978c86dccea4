"""What a message between two devices takes where nobody has given them a link.

A worker spends about as much on either end of an edge within its host as on handing a client its outputs, beside their
bytes: the same work, on sockets and shared memory, with the same caches full of the stage's own tensors. Side by side
on pipelines of 0.2 to 10 ms a stage, the ends of an edge took 0.8 to 1.3 times as long. So what a profile says of
deliveries counts for edges between CPUs of one host; between others the usual link does.

There the two ends follow one another: a receiver that waits is woken once the sender has written. What a link is given
with, or usually takes, passes between the ends and is of both at the same time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from planner.cost.inventory import DEFAULT_LINK, Device, Inventory, LinkSpeed
from planner.cost.measured import Delivery
from planner.cost.sources import CostSource

# The most that was seen of an end. What is left of a delivery beyond that is of its tensors, in some other way than the
# usual link's rate says.
MOST_MESSAGE_SECONDS = 250e-6
# The share of a delivery that its bytes may take for the rest to be clear.
_MOST_OF_BYTES = 0.5
_CPU = "cpu"


def message_seconds(delivery: Delivery, input_bytes: int, output_bytes: int) -> float:
    """Of either end of an edge, beside its bytes: the lesser of both directions. One that large tensors make up most of
    counts only where both are such: what is beside these says little, and may be less than nothing."""
    ends = (delivery.input_seconds, input_bytes), (delivery.output_seconds, output_bytes)
    parts = [(seconds, size_bytes / DEFAULT_LINK.bytes_per_second) for seconds, size_bytes in ends]
    clear = [part for part in parts if part[1] <= _MOST_OF_BYTES * part[0]]
    least = min(seconds - of_bytes for seconds, of_bytes in clear or parts)
    return min(max(least, 0.0), MOST_MESSAGE_SECONDS)


def link_between(inventory: Inventory, sources: Sequence[CostSource], source_id: str, target_id: str) -> LinkSpeed:
    """The link given, else what was measured of the two kinds, else the default."""
    seconds = _measured_between(inventory, sources, source_id, target_id)
    if seconds is None:
        return inventory.link(source_id, target_id)
    return replace(inventory.default_link, latency_seconds=seconds)


def handover_between(inventory: Inventory, sources: Sequence[CostSource], source_id: str, target_id: str) -> float:
    """What the sender of a message spends before a receiver that waits for it can begin."""
    return _measured_between(inventory, sources, source_id, target_id) or 0.0


def _measured_between(
    inventory: Inventory, sources: Sequence[CostSource], source_id: str, target_id: str
) -> float | None:
    measured = measured_messages(inventory, sources)
    if not measured or (source_id, target_id) in inventory.links:
        return None
    ends = [device for device in inventory.devices if device.id in (source_id, target_id)]
    seconds = [message_of(device, measured) for device in ends]
    if len({device.host for device in ends}) > 1 or min(seconds) < 0:
        return None
    return max(seconds)


def measured_messages(inventory: Inventory, sources: Sequence[CostSource]) -> Mapping[str, float]:
    """By kind; of none where somebody has said what links take that are not given."""
    if inventory.default_link != DEFAULT_LINK:
        return {}
    return {one.device_kind: one.message_seconds for one in sources if one.message_seconds is not None}


def message_of(device: Device, measured: Mapping[str, float]) -> float:
    """-1 where nothing was measured, as of GPUs, whose edges do other work than their deliveries."""
    return measured.get(device.kind, -1.0) if device.kind.lower().startswith(_CPU) else -1.0
