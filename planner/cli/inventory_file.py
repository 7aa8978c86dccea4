"""Inventories as people write them: YAML or JSON, sizes in bytes or "80GiB".

```yaml
devices: [{id: n1/gpu0, kind: h100, host: n1, memory: 80GiB}, …]
topology:
  same_host: {bytes_per_second: 5.0e+10, latency_seconds: 1.0e-5}
  islands: [{devices: [n1/gpu0, n1/gpu1], bytes_per_second: 4.5e+11, latency_seconds: 5.0e-6}]
matrix: {bytes_per_second: [[0, 5.0e+10], [5.0e+10, 0]], latency_seconds: 1.0e-5}     # instead of a topology
links: [{source: n1/gpu0, target: n2/gpu0, bytes_per_second: 2.5e+10, bidirectional: true}]     # wins over both
default_link: {bytes_per_second: 1.0e+10, latency_seconds: 5.0e-5}
```
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from planner.cli.quantities import parse_bytes
from planner.cost.inventory import DEFAULT_LINK, Device, Inventory, LinkSpeed
from planner.cost.topology import Island, Topology, matrix_links
from planner.errors import InventoryError, PlannerError

_DEVICE_KEYS = frozenset(
    {"id", "kind", "host", "memory", "memory_bytes", "flops_per_second", "memory_bytes_per_second"}
)
INVENTORY_KEYS = frozenset({"devices", "links", "default_link", "topology", "matrix"})
_SPEED_KEYS = frozenset({"bytes_per_second", "latency_seconds"})
_LINK_KEYS = _SPEED_KEYS | {"source", "target", "bidirectional"}


def read_inventory(path: Path) -> Inventory:
    """Raises InventoryError naming the file and the entry."""
    try:
        document = yaml.safe_load(path.read_text())
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise InventoryError(f"{path}: {error}") from None
    try:
        return parse_inventory(document)
    except InventoryError as error:
        raise InventoryError(f"{path}: {error.message}") from None


def parse_inventory(document: Any) -> Inventory:
    fields = _mapping(document, "the inventory", INVENTORY_KEYS)
    devices = tuple(_device(entry, f"devices[{index}]") for index, entry in enumerate(_list(fields, "devices")))
    links = _matrix(fields, devices) if "matrix" in fields else _topology(fields).links(devices)
    for index, entry in enumerate(_list(fields, "links")):
        links.update(_link(entry, f"links[{index}]"))
    default = fields.get("default_link")
    return Inventory(
        devices=devices,
        links=links,
        default_link=DEFAULT_LINK if default is None else _speed(_mapping(default, "default_link", _SPEED_KEYS)),
    )


def _topology(fields: Mapping[str, Any]) -> Topology:
    if fields.get("topology") is None:
        return Topology()
    entry = _mapping(fields["topology"], "topology", frozenset({"same_host", "islands"}))
    same_host = entry.get("same_host")
    return Topology(
        same_host=(
            None
            if same_host is None
            else _speed(_mapping(same_host, "topology.same_host", _SPEED_KEYS), "topology.same_host")
        ),
        islands=tuple(
            _island(found, f"topology.islands[{index}]") for index, found in enumerate(_list(entry, "islands"))
        ),
    )


def _island(entry: Any, where: str) -> Island:
    fields = _mapping(entry, where, _SPEED_KEYS | {"devices"})
    return Island(device_ids=tuple(map(str, _list(fields, "devices"))), speed=_speed(fields, where))


def _matrix(fields: Mapping[str, Any], devices: Sequence[Device]) -> dict[tuple[str, str], LinkSpeed]:
    if "topology" in fields:
        raise InventoryError("the inventory has a matrix and a topology; give one of them")
    entry = _mapping(fields["matrix"], "matrix", _SPEED_KEYS)
    latency = entry.get("latency_seconds", DEFAULT_LINK.latency_seconds)
    return matrix_links(
        devices,
        _numbers(entry.get("bytes_per_second"), "matrix.bytes_per_second"),
        float(latency) if isinstance(latency, (int, float)) else _numbers(latency, "matrix.latency_seconds"),
    )


def _numbers(found: Any, where: str) -> list[list[float]]:
    try:
        return [[float(number) for number in row] for row in found]
    except (TypeError, ValueError):
        raise InventoryError(f"{where} is {found!r:.80}, needs a list of lists of numbers") from None


def _device(entry: Any, where: str) -> Device:
    fields = _mapping(entry, where, _DEVICE_KEYS)
    if "id" not in fields:
        raise InventoryError(f"{where} has no id; give each device a unique one")
    return Device(
        id=str(fields["id"]),
        kind=str(fields.get("kind", "cpu")),
        host=str(fields.get("host", "localhost")),
        memory_bytes=_memory_bytes(fields, where),
        flops_per_second=_number(fields, "flops_per_second", where),
        memory_bytes_per_second=_number(fields, "memory_bytes_per_second", where),
    )


def _memory_bytes(fields: Mapping[str, Any], where: str) -> int:
    found = fields.get("memory_bytes", fields.get("memory"))
    if found is None:
        raise InventoryError(f"{where} has no memory; write memory: 80GiB, or memory_bytes")
    try:
        return parse_bytes(str(found))
    except PlannerError as error:
        raise InventoryError(f"{where}.memory: {error.message}") from None


def _link(entry: Any, where: str) -> dict[tuple[str, str], LinkSpeed]:
    fields = _mapping(entry, where, _LINK_KEYS)
    if "source" not in fields or "target" not in fields:
        raise InventoryError(f"{where} needs a source and a target")
    source, target = str(fields["source"]), str(fields["target"])
    speed = _speed(fields, where)
    return (
        {(source, target): speed, (target, source): speed} if fields.get("bidirectional") else {(source, target): speed}
    )


def _speed(fields: Mapping[str, Any], where: str = "default_link") -> LinkSpeed:
    return LinkSpeed(
        bytes_per_second=_number(fields, "bytes_per_second", where, DEFAULT_LINK.bytes_per_second),
        latency_seconds=_number(fields, "latency_seconds", where, DEFAULT_LINK.latency_seconds),
    )


def _mapping(entry: Any, where: str, known: frozenset[str]) -> Mapping[str, Any]:
    if not isinstance(entry, Mapping):
        raise InventoryError(f"{where} is {entry!r:.80}, needs a mapping with {', '.join(sorted(known))}")
    unknown = sorted(str(key) for key in entry if key not in known)
    if unknown:
        raise InventoryError(f"{where}: unknown key {unknown[0]!r}; known: {', '.join(sorted(known))}")
    return entry


def _list(fields: Mapping[str, Any], key: str) -> list[Any]:
    found = fields.get(key) or []
    if not isinstance(found, list):
        raise InventoryError(f"{key} is {found!r:.80}, needs a list")
    return found


def _number(fields: Mapping[str, Any], key: str, where: str, otherwise: float = 0.0) -> float:
    try:
        return float(fields.get(key, otherwise))
    except (TypeError, ValueError):
        raise InventoryError(f"{where}.{key} is {fields[key]!r:.80}, needs a number") from None
