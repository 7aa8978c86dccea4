"""Records as JSON and YAML documents: keys are the records' field names, and stay."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from datetime import datetime
from enum import Enum
from pathlib import Path
from typing import Any

from planner.cost.inventory import Inventory
from planner.graph.expression import Expression, Operation, SymbolReference
from planner.plan.options import Mode
from planner.plan.plan import Plan, Stage, StageMemory


def to_document(value: Any) -> Any:
    """Dataclasses become mappings, bytes hexadecimal, times ISO 8601, symbolic dimensions short formulas."""
    if isinstance(value, Enum):
        return value.value
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, (SymbolReference, Operation)):
        return expression_text(value)
    if isinstance(value, Inventory):
        return inventory_document(value)
    if isinstance(value, Mapping):
        return {str(key): to_document(item) for key, item in value.items()}
    if is_dataclass(value):
        return _record(value)
    if isinstance(value, (list, tuple)):
        return [to_document(item) for item in value]
    return str(value) if isinstance(value, Path) else value


def inventory_document(inventory: Inventory) -> dict[str, Any]:
    """What `read_inventory` reads back as the same inventory."""
    links = [
        {
            "source": source,
            "target": target,
            "bytes_per_second": speed.bytes_per_second,
            "latency_seconds": speed.latency_seconds,
        }
        for (source, target), speed in sorted(inventory.links.items(), key=lambda item: item[0])
    ]
    return {
        "devices": [to_document(device) for device in inventory.devices],
        "links": links,
        "default_link": to_document(inventory.default_link),
    }


def expression_text(expression: Expression) -> str:
    """ "s1", "multiply(2, s1)"."""
    if isinstance(expression, int):
        return str(expression)
    if isinstance(expression, SymbolReference):
        return f"s{expression.symbol_id}"
    return f"{expression.operator.value}({', '.join(map(expression_text, expression.operands))})"


def _record(value: Any) -> dict[str, Any]:
    document = {field.name: to_document(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mode):
        document = {"name": value.name, **document}
    if isinstance(value, StageMemory):
        document["peak_bytes"] = value.peak_bytes
    if isinstance(value, Stage):
        document["num_nodes"] = value.num_nodes
    if isinstance(value, Plan):
        document["options"]["symbol_values"] = dict(value.options.symbol_values)
        document["symbol_values"] = dict(value.symbol_values)
        for record in ("created_at", "id"):
            if record in document:
                document = {record: document.pop(record), **document}
    return document
