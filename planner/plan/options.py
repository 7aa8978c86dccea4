"""How a plan is asked for."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum
from typing import ClassVar

from planner.errors import OptionsError
from planner.partition.objective import Objective, Training

MAX_EFFORT = 1000.0


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
class OptimalMode:
    """The least objective that can be found, exact where that can be afforded, and a proven bound.

    `num_stages` 0 means as many as help. `free`: a device may hold several stages, from anywhere in the program.
    `replicate`: idle devices may run copies of a stage. `recompute`: a stage may run cheap nodes that read no
    parameter again, rather than receive what they make. `effort` scales the steps that a search may take.
    """

    name: ClassVar[str] = "optimal"
    num_stages: int = 0
    free: bool = False
    replicate: bool = False
    recompute: bool = False
    effort: float = 1.0

    def __post_init__(self) -> None:
        if not math.isfinite(self.effort) or not 0 < self.effort <= MAX_EFFORT:
            raise OptionsError(f"mode optimal: effort is {self.effort}, needs more than 0 and at most {MAX_EFFORT:g}")


@dataclass(frozen=True, slots=True, kw_only=True)
class CutMode:
    """A stage ends after each named module has run for the last time (Slapo's cut_pipeline_stage)."""

    name: ClassVar[str] = "cut"
    module_paths: tuple[str, ...]

    def __post_init__(self) -> None:
        if not self.module_paths:
            raise OptionsError(
                "options.cut.module_paths is empty; name at least one module to cut after",
                field="options.cut.module_paths",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class BalancedMode:
    """Exact over the program order. `num_stages` 0 means as many as help."""

    name: ClassVar[str] = "balanced"
    num_stages: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SingleMode:
    """Everything on the first of the largest devices."""

    name: ClassVar[str] = "single"


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeBasedMode:
    """First fit by bytes, in program order."""

    name: ClassVar[str] = "size_based"


@dataclass(frozen=True, slots=True, kw_only=True)
class SparseNnMode:
    """Embeddings spread over the devices, all the rest beside each."""

    name: ClassVar[str] = "sparse_nn"


@dataclass(frozen=True, slots=True, kw_only=True)
class CostAwareMode:
    """Merges partitions pairwise while that shortens a lone batch's latency."""

    name: ClassVar[str] = "cost_aware"


@dataclass(frozen=True, slots=True, kw_only=True)
class KlBasedMode:
    """Moves single nodes between the partitions of size_based while that shortens a lone batch's latency."""

    name: ClassVar[str] = "kl_based"


@dataclass(frozen=True, slots=True, kw_only=True)
class AotBasedMode:
    """As given: each node's partition, by node index, and each partition's device id."""

    name: ClassVar[str] = "aot_based"
    partition_of_node: tuple[int, ...]
    device_of_partition: tuple[str, ...]


Mode = (
    OptimalMode
    | CutMode
    | BalancedMode
    | SingleMode
    | SizeBasedMode
    | SparseNnMode
    | CostAwareMode
    | KlBasedMode
    | AotBasedMode
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShapeBucket:
    """Values of dynamic dimensions that a share of the batches has. Weights are relative."""

    symbol_values: tuple[tuple[str, int], ...]
    weight: float = 1.0

    def __post_init__(self) -> None:
        if not math.isfinite(self.weight) or not 0 < self.weight <= 1e9:
            raise OptionsError(f"shape bucket: weight is {self.weight}, needs more than 0 and at most 1e9")


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

    mode: Mode = OptimalMode()
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
