"""What an assignment costs: seconds and bytes per stage and device, re-derived from the problem alone.

- state: the distinct state storages that a stage reads.
- activation: the peak, over the stage's nodes in program order, of one microbatch's live bytes. A storage made in the
  stage lives from its producer to its last access, or to the stage's end if a later stage or the caller needs it. A
  value that enters (read here, or bypassing to a later stage) lives from the stage's start likewise. Views are free
  and keep what they show alive; so does a view of a value that entered.
- buffer: microbatches in flight x (bytes that enter + bytes made here that a later stage or the caller needs).
- load: compute, and each distinct tensor that enters from or leaves to another device, once (see communication). A
  device's load sums its stages'.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from planner.partition.assignment import Assignment
from planner.partition.communication import communication_seconds
from planner.partition.problem import Integers, PartitionProblem
from planner.partition.traffic import Traffic, traffic


@dataclass(frozen=True, slots=True, kw_only=True)
class StageEvaluation:
    compute_seconds: float
    communication_seconds: float
    flops: float
    state_bytes: int
    activation_bytes: int
    buffer_bytes: int

    @property
    def load_seconds(self) -> float:
        return self.compute_seconds + self.communication_seconds

    @property
    def peak_bytes(self) -> int:
        return self.state_bytes + self.activation_bytes + self.buffer_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """`bottleneck_seconds`: the most loaded device. `latency_seconds`: the longest path, each edge paid once."""

    stages: tuple[StageEvaluation, ...]
    device_load_seconds: tuple[float, ...]
    device_peak_bytes: tuple[int, ...]
    bottleneck_seconds: float
    latency_seconds: float


def evaluate(problem: PartitionProblem, assignment: Assignment) -> Evaluation:
    """Linear in reads + stages x values. Says nothing of whether memory suffices."""
    stage_of_node = np.asarray(assignment.stage_of_node, dtype=np.int64)
    flow = traffic(problem, stage_of_node, assignment.num_stages)
    communication = communication_seconds(problem, flow.crossings, assignment.device_of_stage)
    stages = tuple(
        _stage(problem, assignment, stage_of_node, flow, stage, float(communication[stage]))
        for stage in range(assignment.num_stages)
    )
    loads = [0.0] * problem.num_devices
    peaks = [0] * problem.num_devices
    for stage, device in zip(stages, assignment.device_of_stage, strict=True):
        loads[device] += stage.load_seconds
        peaks[device] += stage.peak_bytes
    return Evaluation(
        stages=stages,
        device_load_seconds=tuple(loads),
        device_peak_bytes=tuple(peaks),
        bottleneck_seconds=max(loads),
        latency_seconds=_latency(problem, assignment, flow, stages),
    )


def _latency(
    problem: PartitionProblem, assignment: Assignment, flow: Traffic, stages: tuple[StageEvaluation, ...]
) -> float:
    ready = [0.0] * assignment.num_stages
    for (source, target), size in sorted(flow.edges.items()):
        ends = assignment.device_of_stage[source], assignment.device_of_stage[target]
        arrival = ready[source] + stages[source].compute_seconds + problem.transfer_seconds(*ends, size)
        ready[target] = max(ready[target], arrival)
    return max(at + stage.compute_seconds for at, stage in zip(ready, stages, strict=True))


def _stage(
    problem: PartitionProblem,
    assignment: Assignment,
    stage_of_node: Integers,
    flow: Traffic,
    stage: int,
    communication_seconds: float,
) -> StageEvaluation:
    nodes = np.flatnonzero(stage_of_node == stage)
    device = assignment.device_of_stage[stage]
    entering = (flow.made_in < stage) & (flow.last_needed_in >= stage)
    leaving = (flow.made_in == stage) & ((flow.last_needed_in > stage) | problem.value_returned)
    moved = int(problem.value_bytes[entering].sum() + problem.value_bytes[leaving].sum())
    states = np.unique(problem.use_state[stage_of_node[problem.use_node] == stage])
    return StageEvaluation(
        compute_seconds=float(problem.compute_seconds[device, nodes].sum()),
        communication_seconds=communication_seconds,
        flops=float(problem.flops[nodes].sum()),
        state_bytes=int(problem.state_bytes[states].sum()),
        activation_bytes=_activation_bytes(problem, assignment, stage_of_node, flow, stage, nodes, entering),
        buffer_bytes=problem.microbatches_in_flight * moved,
    )


def _activation_bytes(
    problem: PartitionProblem,
    assignment: Assignment,
    stage_of_node: Integers,
    flow: Traffic,
    stage: int,
    nodes: Integers,
    entering: np.ndarray[tuple[int], np.dtype[np.bool_]],
) -> int:
    num_roots = problem.root_bytes.size
    end = nodes.size - 1
    step = np.full(problem.num_nodes, -1, dtype=np.int64)
    step[nodes] = np.arange(nodes.size)

    last = np.full(num_roots, -1, dtype=np.int64)
    read_root = problem.value_root[problem.read_value]
    np.maximum.at(last, read_root, step[problem.read_node])
    made = problem.value_producer >= 0
    np.maximum.at(last, problem.value_root[made], step[problem.value_producer[made]])
    shown = problem.shown_node < problem.num_nodes
    np.maximum.at(last, problem.shown_root[shown], step[problem.shown_node[shown]])
    if stage == assignment.num_stages - 1:
        last[problem.shown_root[~shown]] = end
    kept = (flow.made_in <= stage) & ((flow.last_needed_in > stage) | problem.value_returned)
    last[problem.value_root[kept]] = end

    change = np.zeros(nodes.size + 1, dtype=np.int64)
    inside = problem.root_producer >= 0
    inside[inside] = stage_of_node[problem.root_producer[inside]] == stage
    own = np.flatnonzero(inside)
    np.add.at(change, step[problem.root_producer[own]], problem.root_bytes[own])
    np.add.at(change, last[own] + 1, -problem.root_bytes[own])
    given = np.flatnonzero(entering)
    change[0] += problem.value_bytes[given].sum()
    np.add.at(change, last[problem.value_root[given]] + 1, -problem.value_bytes[given])
    return int(np.cumsum(change[:-1]).max())
