"""What a training step takes where nothing is split: the device that would be fastest with the whole program on it."""

from __future__ import annotations

from dataclasses import dataclass, replace

from planner.partition.assignment import contiguous
from planner.partition.objective import Activations, Objective, PipelineSchedule
from planner.partition.problem import PartitionProblem
from planner.partition.score import score


@dataclass(frozen=True, slots=True, kw_only=True)
class OneDevice:
    device: int
    step_seconds: float


def fastest_alone(problem: PartitionProblem) -> OneDevice | None:
    """None where no device holds the program, or can run all of it. One evaluation a device.

    With one stage nothing is better than 1F1B: each microbatch forward and back, so that one is kept.
    """
    assert problem.training is not None
    training = replace(problem.training, schedule=PipelineSchedule.ONE_F_ONE_B, activations=Activations.KEPT)
    alone = replace(problem, training=training)
    fastest: OneDevice | None = None
    for device in range(problem.num_devices):
        scored = score(alone, contiguous(alone, (0, problem.num_nodes), (device,)), Objective.STEP_TIME)
        if scored.fits and (fastest is None or scored.value < fastest.step_seconds):
            fastest = OneDevice(device=device, step_seconds=scored.value)
    return fastest
