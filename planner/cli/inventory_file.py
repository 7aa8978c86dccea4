"""Inventories as people write them: YAML or JSON, sizes in bytes or "80GiB".

```yaml
devices: [{id: n1/gpu0, kind: h100, host: n1, memory: 80GiB}, {id: n2/cpu0, shares_cores: true, …}, …]
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

from planner.cli.document_file import read_document
from planner.cli.quantities import parse_bytes
from planner.cost.inventory import DEFAULT_LINK, MAX_DEVICES, Device, Inventory, LinkSpeed
from planner.cost.topology import Island, Topology, matrix_links
from planner.errors import InventoryError, PlannerError
from planner.graph.bounds import shown, shown_value

_DEVICE_KEYS = frozenset(
    {"id", "kind", "host", "memory", "memory_bytes", "flops_per_second", "memory_bytes_per_second", "shares_cores"}
)
INVENTORY_KEYS = frozenset({"devices", "links", "default_link", "topology", "matrix"})
_SPEED_KEYS = frozenset({"bytes_per_second", "latency_seconds"})
_LINK_KEYS = _SPEED_KEYS | {"source", "target", "bidirectional"}


def read_inventory(path: Path) -> Inventory:
    """Raises InvalidArgument naming the file and the entry."""
    try:
        return parse_inventory(read_document(path))
    except InventoryError as error:
        raise InventoryError(f"{path}: {error.message}", **error.metadata) from None


def inventory_path(named: str) -> Path | None:
    """None for the id of a stored inventory. Raises InventoryError for what can only be a file, and is not there."""
    path = Path(named)
    try:
        is_file = path.exists()
    except (OSError, ValueError):
        is_file = False
    if not is_file and (path.suffix or len(path.parts) > 1):
        raise InventoryError(f"{shown(named)}: there is no such file; name one, or the id of a stored inventory")
    return path if is_file else None


def parse_inventory(document: Any) -> Inventory:
    fields = _mapping(document, "the inventory", INVENTORY_KEYS)
    entries = _list(fields, "devices")
    if len(entries) > MAX_DEVICES:
        raise InventoryError(f"the inventory has {len(entries):,} devices; at most {MAX_DEVICES:,} are read")
    devices = tuple(_device(entry, f"devices[{index}]") for index, entry in enumerate(entries))
    links = _matrix(fields, devices) if "matrix" in fields else _topology(fields).links(devices)
    links.update(_links(fields))
    default = fields.get("default_link")
    return Inventory(
        devices=devices,
        links=links,
        default_link=DEFAULT_LINK if default is None else _speed(_mapping(default, "default_link", _SPEED_KEYS)),
    )


def _links(fields: Mapping[str, Any]) -> dict[tuple[str, str], LinkSpeed]:
    links: dict[tuple[str, str], LinkSpeed] = {}
    for index, entry in enumerate(_list(fields, "links")):
        for (source, target), speed in _link(entry, f"links[{index}]").items():
            if (source, target) in links:
                raise InventoryError(
                    f"links[{index}]: {shown(source)} to {shown(target)} has a link already; name each direction once"
                )
            links[source, target] = speed
    return links


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
            _island(island, f"topology.islands[{index}]") for index, island in enumerate(_list(entry, "islands"))
        ),
    )


def _island(entry: Any, where: str) -> Island:
    fields = _mapping(entry, where, _SPEED_KEYS | {"devices"})
    device_ids = [_text(device, f"{where}.devices") for device in _list(fields, "devices")]
    return Island(device_ids=tuple(device_ids), speed=_speed(fields, where))


def _matrix(fields: Mapping[str, Any], devices: Sequence[Device]) -> dict[tuple[str, str], LinkSpeed]:
    if "topology" in fields:
        raise InventoryError("the inventory has a matrix and a topology; give one of them")
    entry = _mapping(fields["matrix"], "matrix", _SPEED_KEYS)
    size, latency = len(devices), entry.get("latency_seconds", DEFAULT_LINK.latency_seconds)
    return matrix_links(
        devices,
        _numbers(entry.get("bytes_per_second"), size, "matrix.bytes_per_second"),
        (
            _numbers(latency, size, "matrix.latency_seconds")
            if isinstance(latency, list)
            else _as_number(latency, "matrix.latency_seconds")
        ),
    )


def _numbers(rows: Any, size: int, where: str) -> list[list[float]]:
    if not isinstance(rows, list) or not all(isinstance(row, list) for row in rows):
        raise InventoryError(f"{where} is {shown_value(rows)}, needs a list of lists of numbers")
    if len(rows) != size or any(len(row) != size for row in rows):
        widths = sorted({len(row) for row in rows})
        raise InventoryError(
            f"{where} has {len(rows)} rows of {' or '.join(map(str, widths[:3])) or 0} numbers, needs {size} by "
            f"{size}, in the order of the devices"
        )
    return [
        [_as_number(number, f"{where}[{row}][{column}]") for column, number in enumerate(numbers)]
        for row, numbers in enumerate(rows)
    ]


def _device(entry: Any, where: str) -> Device:
    fields = _mapping(entry, where, _DEVICE_KEYS)
    if "id" not in fields:
        raise InventoryError(f"{where} has no id; give each device a unique one")
    device: dict[str, Any] = {
        "id": _text(fields["id"], f"{where}.id"),
        "kind": _text(fields.get("kind", "cpu"), f"{where}.kind"),
        "host": _text(fields.get("host", "localhost"), f"{where}.host"),
        "memory_bytes": _memory_bytes(fields, where),
        "flops_per_second": _number(fields, "flops_per_second", where),
        "memory_bytes_per_second": _number(fields, "memory_bytes_per_second", where),
        "shares_cores": _yes_or_no(fields, "shares_cores", where),
    }
    try:
        return Device(**device)
    except InventoryError as error:
        raise InventoryError(f"{where}: {error.message}") from None


def _memory_bytes(fields: Mapping[str, Any], where: str) -> int:
    content = fields.get("memory_bytes", fields.get("memory"))
    if content is None:
        raise InventoryError(f"{where} has no memory; write memory: 80GiB, or memory_bytes")
    if "memory" in fields and "memory_bytes" in fields:
        raise InventoryError(f"{where} has memory and memory_bytes; give one of them")
    if isinstance(content, int) and not isinstance(content, bool):
        return content
    if not isinstance(content, str):
        raise InventoryError(f"{where}.memory is {shown_value(content)}, needs whole bytes, or a text such as 80GiB")
    try:
        return parse_bytes(content)
    except PlannerError as error:
        raise InventoryError(f"{where}.memory: {error.message}") from None


def _link(entry: Any, where: str) -> dict[tuple[str, str], LinkSpeed]:
    fields = _mapping(entry, where, _LINK_KEYS)
    if "source" not in fields or "target" not in fields:
        raise InventoryError(f"{where} needs a source and a target")
    source, target = (_text(fields[end], f"{where}.{end}") for end in ("source", "target"))
    both = _yes_or_no(fields, "bidirectional", where)
    speed = _speed(fields, where)
    return {(source, target): speed, (target, source): speed} if both else {(source, target): speed}


def _speed(fields: Mapping[str, Any], where: str = "default_link") -> LinkSpeed:
    rate = _number(fields, "bytes_per_second", where, DEFAULT_LINK.bytes_per_second)
    latency = _number(fields, "latency_seconds", where, DEFAULT_LINK.latency_seconds)
    try:
        return LinkSpeed(bytes_per_second=rate, latency_seconds=latency)
    except InventoryError as error:
        raise InventoryError(f"{where}: {error.message}") from None


def _mapping(entry: Any, where: str, known_keys: frozenset[str]) -> Mapping[str, Any]:
    if not isinstance(entry, Mapping):
        raise InventoryError(f"{where} is {shown_value(entry)}, needs a mapping with {', '.join(sorted(known_keys))}")
    unknown = sorted(str(key) for key in entry if key not in known_keys)
    if unknown:
        raise InventoryError(f"{where}: unknown key {shown(unknown[0])}; known: {', '.join(sorted(known_keys))}")
    return entry


def _list(fields: Mapping[str, Any], key: str) -> list[Any]:
    items = fields.get(key)
    if items is None:
        return []
    if not isinstance(items, list):
        raise InventoryError(f"{key} is {shown_value(items)}, needs a list")
    return items


def _text(content: Any, where: str) -> str:
    """A number is taken for its digits."""
    if isinstance(content, bool) or not isinstance(content, (str, int)):
        raise InventoryError(f"{where} is {shown_value(content)}, needs a text")
    return str(content)


def _yes_or_no(fields: Mapping[str, Any], key: str, where: str) -> bool:
    content = fields.get(key, False)
    if not isinstance(content, bool):
        raise InventoryError(f"{where}.{key} is {shown_value(content)}, needs true or false")
    return content


def _number(fields: Mapping[str, Any], key: str, where: str, otherwise: float = 0.0) -> float:
    return _as_number(fields.get(key, otherwise), f"{where}.{key}")


def _as_number(content: Any, where: str) -> float:
    """YAML reads 1e9, without a point, as a text."""
    try:
        if isinstance(content, (str, int, float)) and not isinstance(content, bool):
            return float(content)
    except (ValueError, OverflowError):
        pass
    raise InventoryError(f"{where} is {shown_value(content)}, needs a number")
