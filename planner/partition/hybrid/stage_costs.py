"""What a plan costs: seconds per sample and bytes per device of each stage, straight from the definitions.

Seconds per sample of a stage of d copies are those of its nodes and of its bytes over the bandwidth, divided by d. The
bytes: 2 for each that crosses a cut, there and back, and 4 * (d - 1) / microbatches for each of the parameters, whose
gradients the copies sum once per batch.

A device holds, for y microbatches in flight, the sum of y * held_per_microbatch + held_always, where y is the number of
copies of this stage and all behind it, divided by its own and rounded up.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from planner.partition.hybrid.problem import HybridProblem, HybridStage


@dataclass(frozen=True, slots=True, kw_only=True)
class StageCost:
    seconds: float
    held_bytes: float


def stage_costs(problem: HybridProblem, stages: Sequence[HybridStage]) -> list[StageCost]:
    """In pipeline order. O(stages * edges)."""
    return [_cost(problem, stage, sum(later.copies for later in stages[index:])) for index, stage in enumerate(stages)]


def _cost(problem: HybridProblem, stage: HybridStage, copies_behind: int) -> StageCost:
    d, degree = stage.copies, stage.degree
    alternative_of_node = dict(stage.alternatives)
    crossing_bytes = 0.0
    for edge, (source, target) in enumerate(
        zip(problem.edge_source.tolist(), problem.edge_target.tolist(), strict=True)
    ):
        if target in alternative_of_node and source not in alternative_of_node:
            crossing_bytes += 2 * (
                problem.edge_bytes[edge] + problem.entering_bytes[degree, edge, alternative_of_node[target]]
            )
        if source in alternative_of_node and target not in alternative_of_node:
            crossing_bytes += 2 * (
                problem.edge_bytes[edge] + problem.leaving_bytes[degree, edge, alternative_of_node[source]]
            )
    in_flight = -(-copies_behind // d)
    seconds = parameters = used_bytes = 0.0
    for node, alternative in stage.alternatives:
        seconds += float(problem.seconds[degree, node, alternative])
        parameters += float(problem.parameter_bytes[degree, node, alternative])
        used_bytes += float(problem.held_per_microbatch[degree, node, alternative]) * in_flight
        used_bytes += float(problem.held_always[degree, node, alternative])
    summed_bytes = 4 * (d - 1) * parameters / d / problem.microbatches
    return StageCost(
        seconds=float(seconds / d + (crossing_bytes / d + summed_bytes) / problem.bandwidth), held_bytes=used_bytes
    )
