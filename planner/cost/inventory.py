"""Devices and links: what a plan may use, in numbers."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import chain
from numbers import Integral

from planner.errors import InventoryError


def _check_rate(name: str, rate: float, *, least: float) -> None:
    if not math.isfinite(rate) or rate < least:
        raise InventoryError(f"{name} is {rate}, needs a finite number of at least {least:g}")


MAX_TEXT_CHARACTERS = 256
# Sizes have to fit an integer of a database, and arrays of them.
MAX_MEMORY_BYTES = 2**63 - 1
# What an inventory may list; links are kept pair by pair.
MAX_DEVICES = 4096
MIN_RATE, MAX_RATE = 1e-3, 1e24
# Longer than any wait; sums of such stay finite.
MAX_LATENCY_SECONDS = 1e9


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """`memory_bytes` is what a plan may fill. A rate of 0 means the kind's own figure.

    `shares_cores`: of a CPU whose workers take their share of the host's cores, among those of all such devices there.
    """

    id: str
    kind: str
    host: str
    memory_bytes: int
    flops_per_second: float = 0.0
    memory_bytes_per_second: float = 0.0
    shares_cores: bool = False

    def __post_init__(self) -> None:
        if not self.id:
            raise InventoryError("a device has no id; give each device a unique one")
        for name, text in (("id", self.id), ("kind", self.kind), ("host", self.host)):
            if not isinstance(text, str):
                raise InventoryError(f"device {self.id!r:.40}: its {name} is {text!r:.40}, needs str")
            if len(text) > MAX_TEXT_CHARACTERS or not text.isprintable():
                raise InventoryError(
                    f"device {self.id[:40]!r}: its {name} needs at most {MAX_TEXT_CHARACTERS} printable characters"
                )
        if not isinstance(self.memory_bytes, Integral):
            raise InventoryError(f"device {self.id!r}: memory_bytes is {self.memory_bytes!r:.40}, needs int")
        if self.memory_bytes <= 0:
            raise InventoryError(f"device {self.id!r}: memory_bytes is {self.memory_bytes}, needs more than 0")
        if self.memory_bytes > MAX_MEMORY_BYTES:
            raise InventoryError(f"device {self.id!r}: memory_bytes is more than 2^63 - 1, which nothing has")
        for name in ("flops_per_second", "memory_bytes_per_second"):
            rate = getattr(self, name)
            _check_rate(f"device {self.id!r}: {name}", rate, least=0.0)
            if 0 < rate < MIN_RATE or rate > MAX_RATE:
                raise InventoryError(
                    f"device {self.id!r}: {name} is {rate:g}, needs {MIN_RATE:g} to {MAX_RATE:g}, or 0 for its kind's"
                )


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkSpeed:
    bytes_per_second: float
    latency_seconds: float

    def __post_init__(self) -> None:
        _check_rate("bytes_per_second", self.bytes_per_second, least=1.0)
        _check_rate("latency_seconds", self.latency_seconds, least=0.0)
        if self.latency_seconds > MAX_LATENCY_SECONDS:
            raise InventoryError(f"latency_seconds is {self.latency_seconds:g}, needs 0 to {MAX_LATENCY_SECONDS:g}")

    def transfer_seconds(self, size_bytes: int) -> float:
        return self.latency_seconds + size_bytes / self.bytes_per_second


# What a pair of devices gets that no link names.
DEFAULT_LINK = LinkSpeed(bytes_per_second=10e9, latency_seconds=50e-6)


@dataclass(frozen=True, slots=True, kw_only=True)
class Inventory:
    """`links` holds one entry per direction: (source id, target id) to speed."""

    devices: tuple[Device, ...]
    links: Mapping[tuple[str, str], LinkSpeed] = field(default_factory=dict)
    default_link: LinkSpeed = DEFAULT_LINK

    def __post_init__(self) -> None:
        if len(self.devices) > MAX_DEVICES:
            raise InventoryError(f"the inventory has {len(self.devices):,} devices, needs at most {MAX_DEVICES:,}")
        device_ids: set[str] = set()
        for device in self.devices:
            if device.id in device_ids:
                raise InventoryError(f"two devices share an id, {device.id!r}; give each its own", device=device.id)
            device_ids.add(device.id)
        # All at once, since there may be tens of thousands; the pair is looked for where there is one to name.
        if unknown := set(chain.from_iterable(self.links)) - device_ids:
            pair = next(pair for pair in self.links if not unknown.isdisjoint(pair))
            first = next(end for end in pair if end in unknown)
            raise InventoryError(f"link {pair[0]!r} to {pair[1]!r}: no device is called {first!r}")

    def without(self, device_ids: Iterable[str]) -> Inventory:
        """Without some devices and their links. Raises InventoryError for a device that it does not have."""
        left_out = set(device_ids)
        unknown = sorted(left_out - {device.id for device in self.devices})
        if unknown:
            first_ids = ", ".join(repr(device.id) for device in self.devices[:10])
            raise InventoryError(f"no device is called {unknown[0]!r}; there are {first_ids}")
        return Inventory(
            devices=tuple(device for device in self.devices if device.id not in left_out),
            links={pair: speed for pair, speed in self.links.items() if not left_out.intersection(pair)},
            default_link=self.default_link,
        )

    def link(self, source_id: str, target_id: str) -> LinkSpeed:
        return self.links.get((source_id, target_id), self.default_link)
