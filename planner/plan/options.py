"""How a plan is asked for."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from planner.errors import OptionsError


class Routing(Enum):
    """How a tensor gets to a stage that is not its producer's neighbour."""

    DIRECT = "direct"
    RELAY = "relay"


@dataclass(frozen=True, slots=True, kw_only=True)
class CutMode:
    """A stage ends after each named module has run for the last time (Slapo's cut_pipeline_stage)."""

    module_paths: tuple[str, ...]
    name: str = "cut"

    def __post_init__(self) -> None:
        if not self.module_paths:
            raise OptionsError("mode cut: no module paths; name at least one module to cut after")


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeBasedMode:
    name: str = "size_based"


@dataclass(frozen=True, slots=True, kw_only=True)
class BalancedMode:
    """`num_stages` 0 means as many as help."""

    num_stages: int = 0
    name: str = "balanced"


Mode = CutMode | SizeBasedMode | BalancedMode


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanOptions:
    """`microbatches_in_flight` is the depth of each edge's ring of receive buffers; 0 means 2.

    `symbol_values` gives dynamic dimensions, by symbol name, the values to plan for; others take their hint.
    """

    mode: Mode
    routing: Routing = Routing.DIRECT
    microbatches_in_flight: int = 0
    symbol_values: tuple[tuple[str, int], ...] = ()
