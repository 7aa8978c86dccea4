"""Training profiles as documents, of two nodes unless told otherwise."""

from __future__ import annotations

from typing import Any


def alternative(name: str = "plain", **more: Any) -> dict[str, Any]:
    return {
        "id": name, "timePerSample": 1.0, "parameterSize": 4.0, "memoryUsageA": 1.0, "memoryUsageB": 1.0, **more
    }  # fmt: skip


def profile(**more: Any) -> dict[str, Any]:
    return {
        "maxDevices": 2,
        "maxMemoryPerDevice": 100.0,
        "bandwidth": 10.0,
        "mbsInBatch": 4,
        "nodes": [{"id": 7, "TMPCs": {"1": [alternative()]}}, {"id": 3, "TMPCs": {"1": [alternative()]}}],
        "edges": [{"sourceId": 7, "destId": 3, "communicationCost": 0.5}],
        **more,
    }
