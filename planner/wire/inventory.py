"""Inventories on the wire."""

from __future__ import annotations

from operator import itemgetter

from planner.cost.inventory import DEFAULT_LINK, Device, Inventory, LinkSpeed
from planner.errors import InventoryError
from protos.v1 import inventory_pb2

# What sizes are stored as: a larger one would not fit a database's integer.
MAX_BYTES = 2**63 - 1
# Every pair of 256 devices, as many as a plan may use.
MAX_LINKS = 1 << 16


def inventory_to_proto(inventory: Inventory) -> inventory_pb2.Inventory:
    """One link per direction, sorted, so that equal inventories give equal bytes."""
    message = inventory_pb2.Inventory(
        devices=[_device_to_proto(device) for device in inventory.devices],
        default_link=_link_to_proto(inventory.default_link),
    )
    by_source: dict[str, list[tuple[str, LinkSpeed]]] = {}
    for (source, target), speed in inventory.links.items():
        by_source.setdefault(source, []).append((target, speed))
    # Source by source: to sort tens of thousands of pairs at once would keep Python's lock from all other threads.
    for source in sorted(by_source):
        for target, speed in sorted(by_source[source], key=itemgetter(0)):
            message.links.append(_link_to_proto(speed, source, target))
    return message


def inventory_from_proto(message: inventory_pb2.Inventory) -> Inventory:
    """Raises InventoryError, naming the field."""
    if len(message.links) > MAX_LINKS:
        raise InventoryError(
            f"inventory.links has {len(message.links):,} entries, needs at most {MAX_LINKS:,}: "
            "leave out the pairs that default_link says the same of",
            field="inventory.links",
        )
    devices = tuple(_device_from_proto(device, index) for index, device in enumerate(message.devices))
    if not devices:
        raise InventoryError("inventory.devices is empty; name at least one device")
    default = DEFAULT_LINK
    if message.HasField("default_link"):
        default = _speed_from_proto(message.default_link, "inventory.default_link")
    device_ids = frozenset(device.id for device in devices)
    return Inventory(devices=devices, links=_links_from_proto(message, device_ids), default_link=default)


def _links_from_proto(message: inventory_pb2.Inventory, device_ids: frozenset[str]) -> dict[tuple[str, str], LinkSpeed]:
    links: dict[tuple[str, str], LinkSpeed] = {}
    for index, link in enumerate(message.links):
        where = f"inventory.links[{index}]"
        for field, end in (("source", link.source), ("target", link.target)):
            if end not in device_ids:
                raise InventoryError(
                    f"{where}.{field}: no device is called {end!r}; there are {sorted(device_ids)}",
                    field=f"{where}.{field}",
                )
        speed = _speed_from_proto(link, where)
        pairs = [(link.source, link.target)]
        if link.bidirectional and link.source != link.target:
            pairs.append((link.target, link.source))
        for pair in pairs:
            if pair in links:
                raise InventoryError(
                    f"{where}: {pair[0]!r} to {pair[1]!r} has a link already; name each direction once", field=where
                )
            links[pair] = speed
    return links


def _device_to_proto(device: Device) -> inventory_pb2.Device:
    return inventory_pb2.Device(
        id=device.id,
        kind=device.kind,
        host=device.host,
        memory_bytes=device.memory_bytes,
        flops_per_second=device.flops_per_second,
        memory_bytes_per_second=device.memory_bytes_per_second,
        shares_cores=device.shares_cores,
    )


def _device_from_proto(message: inventory_pb2.Device, index: int) -> Device:
    where = f"inventory.devices[{index}]"
    if message.memory_bytes > MAX_BYTES:
        raise InventoryError(
            f"{where}.memory_bytes is {message.memory_bytes}, needs at most 2^63 - 1", field=f"{where}.memory_bytes"
        )
    try:
        return Device(
            id=message.id,
            kind=message.kind,
            host=message.host,
            memory_bytes=message.memory_bytes,
            flops_per_second=message.flops_per_second,
            memory_bytes_per_second=message.memory_bytes_per_second,
            shares_cores=message.shares_cores,
        )
    except InventoryError as error:
        raise InventoryError(f"{where}: {error.message}", field=where) from None


def _link_to_proto(speed: LinkSpeed, source: str = "", target: str = "") -> inventory_pb2.Link:
    return inventory_pb2.Link(
        source=source,
        target=target,
        bytes_per_second=speed.bytes_per_second,
        latency_seconds=speed.latency_seconds,
    )


def _speed_from_proto(message: inventory_pb2.Link, where: str) -> LinkSpeed:
    try:
        return LinkSpeed(bytes_per_second=message.bytes_per_second, latency_seconds=message.latency_seconds)
    except InventoryError as error:
        raise InventoryError(f"{where}: {error.message}", field=where) from None
