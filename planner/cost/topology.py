"""Links from how machines are built: a speed within a host, faster islands (NVLink, PCIe switches), whole matrices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations

from planner.cost.inventory import Device, LinkSpeed
from planner.errors import InventoryError

Links = dict[tuple[str, str], LinkSpeed]


@dataclass(frozen=True, slots=True, kw_only=True)
class Island:
    """Devices that all reach each other at one speed."""

    device_ids: tuple[str, ...]
    speed: LinkSpeed


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """What is more particular wins: an island over the host's speed; of several islands the last."""

    same_host: LinkSpeed | None = None
    islands: tuple[Island, ...] = ()

    def links(self, devices: Sequence[Device]) -> Links:
        """One entry per direction for each pair that the topology says anything of."""
        links: Links = {}
        if self.same_host is not None:
            members: dict[str, list[str]] = {}
            for device in devices:
                members.setdefault(device.host, []).append(device.id)
            for device_ids in members.values():
                links.update(dict.fromkeys(permutations(device_ids, 2), self.same_host))
        for island in self.islands:
            _check_known(island, devices)
            links.update(dict.fromkeys(permutations(island.device_ids, 2), island.speed))
        return links


def matrix_links(
    devices: Sequence[Device],
    bytes_per_second: Sequence[Sequence[float]],
    latency_seconds: Sequence[Sequence[float]] | float,
) -> Links:
    """[source][target], in the order of the devices; the diagonal is not read."""
    _check_square("bytes_per_second", bytes_per_second, len(devices))
    if not isinstance(latency_seconds, (int, float)):
        _check_square("latency_seconds", latency_seconds, len(devices))
    links: Links = {}
    for (row, source), (column, target) in permutations(enumerate(devices), 2):
        latency = latency_seconds if isinstance(latency_seconds, (int, float)) else latency_seconds[row][column]
        try:
            speed = LinkSpeed(bytes_per_second=bytes_per_second[row][column], latency_seconds=latency)
        except InventoryError as error:
            raise InventoryError(f"link matrix, {source.id!r} to {target.id!r}: {error.message}") from None
        links[source.id, target.id] = speed
    return links


def _check_known(island: Island, devices: Sequence[Device]) -> None:
    device_ids: Mapping[str, None] = dict.fromkeys(device.id for device in devices)
    unknown = [device_id for device_id in island.device_ids if device_id not in device_ids]
    if unknown:
        raise InventoryError(f"topology: no device is called {unknown[0]!r}")
    if len(set(island.device_ids)) < 2:
        raise InventoryError(f"topology: an island of {list(island.device_ids)}, needs two devices or more")


def _check_square(name: str, matrix: Sequence[Sequence[float]], size: int) -> None:
    widths = {len(row) for row in matrix}
    if len(matrix) != size or widths - {size}:
        raise InventoryError(
            f"link matrix: {name} has {len(matrix)} rows of {sorted(widths)} numbers, needs {size} by {size}, "
            f"in the order of the devices"
        )
