"""Inventories as people write them: YAML or JSON, sizes in bytes or "80GiB"."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from planner.cli.quantities import parse_bytes
from planner.cost.inventory import DEFAULT_LINK, Device, Inventory, LinkSpeed
from planner.errors import InventoryError, PlannerError

_DEVICE_KEYS = frozenset(
    {"id", "kind", "host", "memory", "memory_bytes", "flops_per_second", "memory_bytes_per_second"}
)
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
    fields = _mapping(document, "the inventory", frozenset({"devices", "links", "default_link"}))
    links: dict[tuple[str, str], LinkSpeed] = {}
    for index, entry in enumerate(_list(fields, "links")):
        links.update(_link(entry, f"links[{index}]"))
    default = fields.get("default_link")
    return Inventory(
        devices=tuple(_device(entry, f"devices[{index}]") for index, entry in enumerate(_list(fields, "devices"))),
        links=links,
        default_link=DEFAULT_LINK if default is None else _speed(_mapping(default, "default_link", _SPEED_KEYS)),
    )


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
