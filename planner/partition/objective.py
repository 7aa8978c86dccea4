"""What a partition is good for: the quantity to make least, and what a training step is made of."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum

from planner.declared_types import check_declared
from planner.errors import OptionsError

MAX_MICROBATCHES = 1 << 16


class Objective(Enum):
    """Throughput: the most loaded device's seconds. Latency: a lone batch's. Step time: a whole training step's, for
    its schedule and microbatches. Memory: the fullest device's share of its bytes."""

    THROUGHPUT = "throughput"
    LATENCY = "latency"
    STEP_TIME = "step_time"
    MEMORY = "memory"


class PipelineSchedule(Enum):
    """The order of a training step's forward and backward passes.

    GPipe: Huang et al. 2019. 1F1B: Narayanan et al. 2019; interleaved: 2021. Zero bubble, H1, H2 and V: Qi et al. 2023;
    V-Half: 2024. Best: searched for the stages at hand.
    """

    GPIPE = "gpipe"
    ONE_F_ONE_B = "1f1b"
    INTERLEAVED = "interleaved_1f1b"
    ZERO_BUBBLE = "zero_bubble"
    ZERO_BUBBLE_H2 = "zero_bubble_h2"
    ZERO_BUBBLE_V = "zero_bubble_v"
    V_HALF = "v_half"
    BEST = "best"


# Those with a rule for devices of two stages in a V, and those with one for any stages on any devices.
V_SCHEDULES = (PipelineSchedule.ZERO_BUBBLE_V, PipelineSchedule.V_HALF)
NAMED_SCHEDULES = tuple(
    schedule for schedule in PipelineSchedule if schedule not in (*V_SCHEDULES, PipelineSchedule.BEST)
)


# Whose backward passes are for inputs and weights at once.
UNSPLIT_SCHEDULES = (PipelineSchedule.GPIPE, PipelineSchedule.ONE_F_ONE_B, PipelineSchedule.INTERLEAVED)
# What weights' gradients take of a backward pass in two, where nobody has measured it.
USUAL_WEIGHT_SHARE = 0.5


class Activations(Enum):
    """What a stage keeps of a microbatch for its backward pass: all that is read there, or what it was given alone,
    and runs forward again first (Chen et al. 2016). As needed: some stages, where that makes room or a better plan."""

    KEPT = "kept"
    RECOMPUTED = "recomputed"
    AS_NEEDED = "as_needed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """A step runs `microbatches` forward and backward under a schedule, then the optimizer once.

    `optimizer_bytes_per_parameter` counts an optimizer's own state and copies for each trained element (Adam: 8; of
    bfloat16 with float32 copies, which also take the sums of gradients, 16). A backward pass takes `backward_ratio`
    times its forward pass, and where activations are computed again one forward pass more.
    """

    schedule: PipelineSchedule = PipelineSchedule.ONE_F_ONE_B
    microbatches: int = 8
    optimizer_bytes_per_parameter: float = 8.0
    backward_ratio: float = 2.0
    activations: Activations = Activations.KEPT

    def __post_init__(self) -> None:
        check_declared(self, "training")
        if not 1 <= self.microbatches <= MAX_MICROBATCHES:
            raise OptionsError(f"training: {self.microbatches} microbatches, needs 1 to {MAX_MICROBATCHES}")
        for name in ("optimizer_bytes_per_parameter", "backward_ratio"):
            value = getattr(self, name)
            if not math.isfinite(value) or not 0 <= value <= 1024:
                raise OptionsError(f"training: {name} is {value}, needs 0 to 1024")
        if self.activations is not Activations.KEPT and self.schedule not in UNSPLIT_SCHEDULES:
            raise OptionsError(
                f"training: activations are {self.activations.value} under schedule {self.schedule.value}, whose "
                "passes for weights would keep what was computed again; ask for "
                f"{', '.join(schedule.value for schedule in UNSPLIT_SCHEDULES)}, or keep them"
            )
