"""What profiles taught about a device kind: the rates that speak for nodes that nobody measured."""

from __future__ import annotations

from dataclasses import dataclass

from planner.cost.device_kinds import DeviceKind


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """`rates` of a kind, from `num_nodes` measured nodes; half of them are within `median_error` (relative).

    `profile_id` is the stored profile that they were fitted to, empty where nothing is stored.
    """

    device_kind: str
    rates: DeviceKind
    num_nodes: int
    median_error: float
    profile_id: str = ""

    def is_of_kind(self, kind: str) -> bool:
        return self.device_kind.lower() == kind.lower()
