"""The problem in numbers, its solutions, and what these cost.

A plan is a pipeline of stages; no edge runs back. A stage has `copies` (data parallel), which share the microbatches of
a batch, each on `degree` devices (tensor parallel). For each node it takes one of the alternatives that the node has at
that degree, such as with activation recomputation or without.

Idle sources are nodes that only stand at the program's start: they cost nothing anywhere, and what reads them gets no
bytes. They multiply the order ideals, and a plan is as good without them; they go to the first stage that reads them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from planner.partition.problem import Booleans, Floats, Integers


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


def idle_sources(problem: HybridProblem) -> Booleans:
    """[n] those that read nothing, or idle sources alone. At least one node is not."""
    costs = (problem.seconds, problem.parameter_bytes, problem.held_per_microbatch, problem.held_always)
    idle = np.all([(cost[:, :, 0] == 0).all(axis=0) for cost in costs], axis=0)
    has_bytes = (problem.edge_bytes != 0) | (problem.entering_bytes != 0).any(axis=(0, 2))
    has_bytes |= (problem.leaving_bytes != 0).any(axis=(0, 2))
    idle[problem.edge_source[has_bytes]] = False
    waiting = True
    while waiting:
        waits = problem.edge_target[~idle[problem.edge_source]]
        waiting = bool(idle[waits].any())
        idle[waits] = False
    if idle.all():
        idle[np.setdiff1d(np.arange(problem.num_nodes), problem.edge_source)[:1]] = False
    return np.asarray(idle, dtype=np.bool_)


def without_nodes(problem: HybridProblem, left_out: Booleans) -> HybridProblem:
    """Also without their edges."""
    stays = ~left_out
    number = np.cumsum(stays) - 1
    inside = stays[problem.edge_source] & stays[problem.edge_target]
    return replace(
        problem,
        seconds=problem.seconds[:, stays],
        parameter_bytes=problem.parameter_bytes[:, stays],
        held_per_microbatch=problem.held_per_microbatch[:, stays],
        held_always=problem.held_always[:, stays],
        edge_source=number[problem.edge_source[inside]],
        edge_target=number[problem.edge_target[inside]],
        edge_bytes=problem.edge_bytes[inside],
        entering_bytes=problem.entering_bytes[:, inside],
        leaving_bytes=problem.leaving_bytes[:, inside],
    )


def with_idle_sources(
    problem: HybridProblem, left_out: Booleans, stages: Sequence[HybridStage]
) -> tuple[HybridStage, ...]:
    """`stages` of the problem without them. Each comes to the first stage that reads it, with its first alternative."""
    remaining = np.flatnonzero(~left_out)
    stage_of_node = np.full(problem.num_nodes, len(stages), dtype=np.int64)
    for index, stage in enumerate(stages):
        stage_of_node[remaining[[node for node, _ in stage.alternatives]]] = index
    _settle(problem, left_out, stage_of_node)
    completed = []
    for index, stage in enumerate(stages):
        alternatives = [(int(remaining[node]), alternative) for node, alternative in stage.alternatives]
        alternatives += [(node, 0) for node in np.flatnonzero(left_out & (stage_of_node == index)).tolist()]
        completed.append(replace(stage, alternatives=tuple(sorted(alternatives))))
    return tuple(completed)


def _settle(problem: HybridProblem, left_out: Booleans, stage_of_node: Integers) -> None:
    """Until each stands no later than its readers; those that nothing reads stand first."""
    read = np.zeros(problem.num_nodes, dtype=np.bool_)
    read[problem.edge_source] = True
    stage_of_node[left_out & ~read] = 0
    edges = np.flatnonzero(left_out[problem.edge_source])
    before = None
    while before is None or not np.array_equal(before, stage_of_node):
        before = stage_of_node.copy()
        np.minimum.at(stage_of_node, problem.edge_source[edges], before[problem.edge_target[edges]])
