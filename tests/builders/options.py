"""Options of every mode, with no field at its default, for what has to carry them unchanged."""

from __future__ import annotations

from planner.partition.objective import Activations, Objective, PipelineSchedule, Training
from planner.plan.options import (
    AotBasedMode,
    BalancedMode,
    CostAwareMode,
    CutMode,
    KlBasedMode,
    Mode,
    OptimalMode,
    PlanOptions,
    Routing,
    ShapeBucket,
    SingleMode,
    SizeBasedMode,
    SparseNnMode,
)

MODES: tuple[Mode, ...] = (
    OptimalMode(num_stages=3, free=True, replicate=True, recompute=True, effort=0.5),
    CutMode(module_paths=("encoder.block.11", "encoder")),
    BalancedMode(num_stages=4),
    SingleMode(),
    SizeBasedMode(),
    SparseNnMode(),
    CostAwareMode(),
    KlBasedMode(),
    AotBasedMode(partition_of_node=(0, 0, 1), device_of_partition=("a", "b")),
)


def full_options(mode: Mode, routing: Routing = Routing.RELAY) -> PlanOptions:
    return PlanOptions(
        mode=mode,
        objective=Objective.STEP_TIME,
        routing=routing,
        microbatches_in_flight=3,
        symbol_values=(("batch", 8), ("sequence", 128)),
        buckets=(
            ShapeBucket(symbol_values=(("batch", 1),), weight=3.0),
            ShapeBucket(symbol_values=(("batch", 64), ("sequence", 2))),
        ),
        training=Training(
            schedule=PipelineSchedule.INTERLEAVED,
            microbatches=5,
            optimizer_bytes_per_parameter=12.0,
            backward_ratio=1.5,
            activations=Activations.AS_NEEDED,
        ),
        fixed=(("embeddings", "b"), ("head", "a")),
        together=(("block.0", "block.1"), ("head",)),
        saturate_host=True,
        rates_from_profiles=("prof-b", "prof-a"),
    )
