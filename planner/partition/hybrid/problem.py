"""The problem in numbers, its solutions, and what these cost.

A plan is a pipeline of stages; no edge runs back. A stage has `copies` (data parallel), which share the microbatches of
a batch, each on `degree` devices (tensor parallel). For each node it takes one of the alternatives that the node has at
that degree, such as with activation recomputation or without.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from planner.partition.problem import Floats, Integers


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class HybridProblem:
    """Nodes [n], edges [e], degrees [t] (devices per copy, ascending), alternatives [a].

    `seconds` [t, n, a]: of one sample; inf where the node has no such alternative. `parameter_bytes` [t, n, a].
    A device holds `held_per_microbatch` [t, n, a] for each microbatch in flight, and `held_always` [t, n, a].
    Across a cut go `edge_bytes` [e], and besides `entering_bytes` [t, e, a] for the reader's alternative and
    `leaving_bytes` [t, e, a] for the producer's. `microbatches`: of a batch. `bandwidth`: bytes per second.
    """

    degrees: Integers
    seconds: Floats
    parameter_bytes: Floats
    held_per_microbatch: Floats
    held_always: Floats
    edge_source: Integers
    edge_target: Integers
    edge_bytes: Floats
    entering_bytes: Floats
    leaving_bytes: Floats
    microbatches: int
    num_devices: int
    memory_bytes: float
    bandwidth: float

    @property
    def num_nodes(self) -> int:
        return int(self.seconds.shape[1])

    @property
    def copies(self) -> Integers:
        """Numbers of copies that a stage may have, ascending: they share the microbatches of a batch evenly."""
        counts = np.arange(1, min(self.microbatches, self.num_devices) + 1)
        return np.asarray(counts[self.microbatches % counts == 0], dtype=np.int64)


@dataclass(frozen=True, slots=True, kw_only=True)
class HybridStage:
    """`degree`: position in HybridProblem.degrees. `alternatives`: (node, alternative), nodes ascending."""

    copies: int
    degree: int
    alternatives: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class HybridPlan:
    """Stages in pipeline order. No plan takes fewer than `lower_bound_seconds` per sample."""

    stages: tuple[HybridStage, ...]
    seconds_per_sample: float
    lower_bound_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StageCost:
    """Seconds per sample, and bytes per device.

    Seconds of a stage of d copies are those of its nodes and of its bytes over the bandwidth, divided by d. The bytes:
    2 for each that crosses a cut, there and back, and 4 * (d - 1) / microbatches for each of the parameters, whose
    gradients the copies sum once per batch. A device holds, for y microbatches in flight, the sum of y *
    held_per_microbatch + held_always, where y is the number of copies of this stage and all behind it, divided by its
    own and rounded up.
    """

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
