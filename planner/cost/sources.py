"""Where a plan's seconds come from, for each kind of device."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class RateSource(Enum):
    """Of nodes that were not measured: rates given with the device, fitted to measurements, or the kind's peaks."""

    GIVEN = "given"
    CALIBRATED = "calibrated"
    ROOFLINE = "roofline"


@dataclass(frozen=True, slots=True, kw_only=True)
class CostSource:
    """`num_measured` of `num_nodes` nodes have measured times; `scaled` if those were taken at other dimensions."""

    device_kind: str
    num_measured: int
    num_nodes: int
    rates: RateSource
    scaled: bool = False

    def text(self) -> str:
        """ "measured 412 of 430 nodes, others calibrated"; "roofline"."""
        rates = {RateSource.GIVEN: "given rates"}.get(self.rates, self.rates.value)
        if not self.num_measured:
            return rates
        others = "" if self.num_measured == self.num_nodes else f", others {rates}"
        return f"measured {self.num_measured} of {self.num_nodes} nodes{' (scaled)' if self.scaled else ''}{others}"
