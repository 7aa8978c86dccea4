"""The answer to a PartitionProblem."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from planner.partition.problem import PartitionProblem
from planner.partition.training.pipeline_order import Step


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """Stages are numbered from 0 without gaps; edges go to higher stages only. One reason per stage, why it ends there,
    once a mode has chosen the assignment.

    `lower_bound_seconds` bounds the objective of every assignment that the mode allows; None if nothing is proven.
    `replicas` [stages]: further devices that run copies of the stage, each taking its share of the microbatches; empty
    where no stage has any. `recomputed` [stages]: nodes of earlier stages that it runs again, ascending; likewise.
    `orders`: of each device that runs a stage, its passes in a training step; empty where the schedule has a rule.
    `keeping`: stages that keep their activations although the problem's training has them computed again.
    """

    stage_of_node: tuple[int, ...]
    device_of_stage: tuple[int, ...]
    reasons: tuple[str, ...] = ()
    lower_bound_seconds: float | None = None
    replicas: tuple[tuple[int, ...], ...] = ()
    recomputed: tuple[tuple[int, ...], ...] = ()
    orders: tuple[tuple[int, tuple[Step, ...]], ...] = ()
    keeping: tuple[int, ...] = ()

    @property
    def num_stages(self) -> int:
        return len(self.device_of_stage)

    @property
    def devices_of_stage(self) -> tuple[tuple[int, ...], ...]:
        """[stages] every device that runs the stage, its first one first."""
        copies = self.replicas or ((),) * self.num_stages
        return tuple((first, *others) for first, others in zip(self.device_of_stage, copies, strict=True))


def on_devices(assignment: Assignment, devices: Sequence[int]) -> Assignment:
    """The same on others: `devices` [devices of the assignment's problem] are positions in another problem's."""
    return replace(
        assignment,
        device_of_stage=tuple(devices[at] for at in assignment.device_of_stage),
        replicas=tuple(tuple(devices[at] for at in copies) for copies in assignment.replicas),
        orders=tuple((devices[at], steps) for at, steps in assignment.orders),
    )


def contiguous(
    problem: PartitionProblem,
    boundaries: Sequence[int],
    devices: Sequence[int],
    reasons: Sequence[str] = (),
    lower_bound_seconds: float | None = None,
) -> Assignment:
    """Stage s holds nodes boundaries[s] to boundaries[s + 1]; `boundaries` starts at 0 and ends at n."""
    stages = tuple(stage for stage, (start, end) in enumerate(pairwise(boundaries)) for _ in range(start, end))
    assert len(stages) == problem.num_nodes
    return Assignment(
        stage_of_node=stages,
        device_of_stage=tuple(devices),
        reasons=tuple(reasons),
        lower_bound_seconds=lower_bound_seconds,
    )
