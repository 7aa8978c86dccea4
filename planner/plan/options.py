"""How a plan is asked for."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import Enum

from planner.declared_types import check_declared
from planner.errors import OptionsError
from planner.partition.modes.table import (
    AotBasedMode,
    BalancedMode,
    CostAwareMode,
    CutMode,
    KlBasedMode,
    Mode,
    OptimalMode,
    SingleMode,
    SizeBasedMode,
    SparseNnMode,
)
from planner.partition.objective import Objective, Training

# What callers need to say how they want a plan, from one place.
__all__ = [
    "AotBasedMode",
    "BalancedMode",
    "CostAwareMode",
    "CutMode",
    "KlBasedMode",
    "Mode",
    "OptimalMode",
    "PlanOptions",
    "RatesFrom",
    "Routing",
    "ShapeBucket",
    "SingleMode",
    "SizeBasedMode",
    "SparseNnMode",
]


class Routing(Enum):
    """How a tensor gets to a stage that is not its producer's neighbour."""

    DIRECT = "direct"
    RELAY = "relay"


class RatesFrom(Enum):
    """Whose measurements speak for nodes that have no measured time.

    OWN: rates of a kind fitted to the graph's own profiles. NEWEST: where there are none, those of the newest profile
    of the kind that has any, whatever its graph.
    """

    OWN = "own"
    NEWEST = "newest"


@dataclass(frozen=True, slots=True, kw_only=True)
class ShapeBucket:
    """Values of dynamic dimensions that a share of the batches has. Weights are relative."""

    symbol_values: tuple[tuple[str, int], ...]
    weight: float = 1.0

    def __post_init__(self) -> None:
        check_declared(self, "shape bucket")
        if not math.isfinite(self.weight) or not 0 < self.weight <= 1e9:
            raise OptionsError(f"shape bucket: weight is {self.weight}, needs more than 0 and at most 1e9")


_DEFAULT_MICROBATCHES_IN_FLIGHT = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanOptions:
    """`microbatches_in_flight` is the depth of each edge's ring of receive buffers; 0 means 2.

    `symbol_values` gives dynamic dimensions, by symbol name, the values to plan for; others take their hint. With
    `buckets`, seconds are the weighted mean over them and bytes the largest of any. `fixed` puts a module's nodes on a
    device (module path, device id); `together` names modules that have to share a stage. `training` None: inference.
    `saturate_host` gives stages copies on idle devices. `rates_from` None means what the server is set to.
    `rates_from_profiles` instead names profiles, one for each kind at most, of this graph or others: their rates come
    before those fitted to the graph's own profiles.
    """

    mode: Mode = field(default=OptimalMode())
    objective: Objective = Objective.THROUGHPUT
    routing: Routing = Routing.DIRECT
    microbatches_in_flight: int = 0
    symbol_values: tuple[tuple[str, int], ...] = ()
    buckets: tuple[ShapeBucket, ...] = ()
    training: Training | None = None
    fixed: tuple[tuple[str, str], ...] = ()
    together: tuple[tuple[str, ...], ...] = ()
    saturate_host: bool = False
    rates_from: RatesFrom | None = None
    rates_from_profiles: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check_declared(self, "options")
        if self.microbatches_in_flight < 0:
            raise OptionsError(f"options.microbatches_in_flight is {self.microbatches_in_flight}, needs 0 or more")
        if self.rates_from is not None and self.rates_from_profiles:
            raise OptionsError(
                f"options.rates_from is {self.rates_from.value} and options.rates_from_profiles names "
                f"{self.rates_from_profiles[0][:80]!r}; give one of the two",
                field="options.rates_from_profiles",
            )
        if len(set(self.rates_from_profiles)) < len(self.rates_from_profiles):
            raise OptionsError(
                "options.rates_from_profiles names a profile twice; name each once", field="options.rates_from_profiles"
            )
        if self.objective is Objective.STEP_TIME and self.training is None:
            raise OptionsError("objective step_time needs a training schedule and a number of microbatches")

    @property
    def in_flight(self) -> int:
        """Microbatches, the default where none are asked for."""
        return self.microbatches_in_flight or _DEFAULT_MICROBATCHES_IN_FLIGHT
