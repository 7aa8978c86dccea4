"""Where a plan's seconds come from, for each kind of device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum


class RateSource(Enum):
    """Of nodes that were not measured: rates given with the device, fitted to measurements, or the kind's peaks."""

    GIVEN = "given"
    CALIBRATED = "calibrated"
    ROOFLINE = "roofline"


@dataclass(frozen=True, slots=True, kw_only=True)
class CostSource:
    """`num_measured` of `num_nodes` nodes have measured times, `num_backward` of them of their backward passes too;
    `scaled` if those were taken at other dimensions.

    `message_seconds`: what an end of an edge within a host takes beside its bytes, as the times say; see
    planner.cost.messages. `norm_bytes_per_second` and `optimizer_bytes_per_second`: at what rates gradients' norms are
    read and states updated, as measured; see planner.cost.update_rates. `measured_profile_ids` are the stored profiles
    of the graph that the times are from, newest first. `calibration_profile_ids` are those that rates were fitted to;
    with given rates, only what a call costs is of them.
    """

    device_kind: str
    num_measured: int
    num_nodes: int
    rates: RateSource
    scaled: bool = False
    measured_profile_ids: tuple[str, ...] = ()
    calibration_profile_ids: tuple[str, ...] = ()
    num_backward: int = 0
    message_seconds: float | None = None
    norm_bytes_per_second: float | None = None
    optimizer_bytes_per_second: float | None = None

    @property
    def profile_ids(self) -> tuple[str, ...]:
        """Each profile once."""
        return tuple(dict.fromkeys((*self.measured_profile_ids, *self.calibration_profile_ids)))

    def text(self) -> str:
        """ "measured 412 of 430 nodes, 300 of them backward too (prof-1), others calibrated (prof-2)"; "roofline"."""
        if not self.num_measured:
            return self._rates()
        backward = f", {self.num_backward} of them backward too" if self.num_backward else ""
        measured = f"measured {self.num_measured} of {self.num_nodes} nodes{backward}"
        if self.num_measured < self.num_nodes:
            notes = ("scaled", *self.measured_profile_ids) if self.scaled else self.measured_profile_ids
            return f"{measured}{_notes(notes)}, others {self._rates()}"
        scaled = f", scaled by {self._rates()}" if self.scaled else ""
        return f"{measured}{_notes(self.measured_profile_ids)}{scaled}"

    def _rates(self) -> str:
        fitted = _notes(self.calibration_profile_ids)
        if self.rates is RateSource.GIVEN:
            return f"given rates, cost of a call calibrated{fitted}" if fitted else "given rates"
        return f"{self.rates.value}{fitted}"


def _notes(notes: Sequence[str]) -> str:
    return f" ({', '.join(notes)})" if notes else ""
