"""What an assignment costs: seconds and bytes per stage and device, re-derived from the problem alone.

- state: the distinct state storages that a stage reads.
- activation: the peak, over the stage's nodes in program order, of one microbatch's live bytes. A storage made in the
  stage lives from its producer to its last access, or to the stage's end if a later stage or the caller needs it. A
  value that enters lives from the stage's start likewise: what is read here, with relay also what a later stage reads,
  and in the first stage every input. Views are free and keep what they show alive; so does a view of a value that
  entered.
- buffer: microbatches in flight x (bytes that enter + bytes made here that a later stage or the caller needs).
- in training, gradient and optimizer: what the trained states among them hold besides. saved: for each microbatch that
  the stage keeps at once, the storages made in it that a node with a gradient makes or reads, and the values that enter
  and that such a node of it reads. A stage that computes its activations again saves all values that enter and that
  are read there; what is made in it is among its activations, once.
- load: compute, forward and backward, deliveries from and to clients, and each distinct tensor that enters from or
  leaves to another device, once (see traffic), and in training its gradient on the way back. A device's load sums
  its stages'; of a stage with copies it has its share of the microbatches.
- latency: of one microbatch. A device runs its stages one at a time, in the order of their numbers; each receives, runs
  and sends, and those that read what it makes may begin when it has run; those that it hands inputs alone, once it has
  taken these.
- what a stage runs again costs it seconds, bytes and states as if it were its own.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from planner.partition.assignment import Assignment
from planner.partition.objective import USUAL_WEIGHT_SHARE, Objective, PipelineSchedule
from planner.partition.problem import Floats, Integers, PartitionProblem
from planner.partition.recomputation.expansion import expanded
from planner.partition.stage_bytes import NodesByStage, stage_bytes, state_holders
from planner.partition.traffic import (
    AHEAD,
    Exchange,
    Traffic,
    exchange_seconds,
    gradient_exchange_seconds,
    handovers,
    sources_of_lone_batch,
    traffic,
)
from planner.partition.training.memory import counted_microbatches, sum_seconds, tied_gradients
from planner.partition.training.named_orders import device_orders
from planner.partition.training.orders.best_order import best_order, quick_order
from planner.partition.training.orders.room import Room
from planner.partition.training.pipeline_order import Step
from planner.partition.training.step_graph import Reduction, StageSeconds, TrainingStep
from planner.partition.training.step_time import step_seconds
from planner.partition.training.update import agreement_seconds, seconds_after_passes, update_seconds
from planner.partition.windows import windows_at_clients, windows_of_copies


@dataclass(frozen=True, slots=True, kw_only=True)
class StageEvaluation:
    """Seconds of one microbatch on the slowest of its devices; bytes on each of them.

    `communication_seconds` holds both directions: the microbatch's tensors, and in training their gradients.
    """

    compute_seconds: float
    communication_seconds: float
    flops: float
    state_bytes: int
    activation_bytes: int
    buffer_bytes: int
    delivery_seconds: float = 0.0
    backward_seconds: float = 0.0
    weight_share: float = USUAL_WEIGHT_SHARE
    gradient_bytes: int = 0
    optimizer_bytes: int = 0
    saved_bytes: int = 0
    recomputes_activations: bool = False

    @property
    def load_seconds(self) -> float:
        return self.forward_seconds + self.backward_seconds + self.communication_seconds

    @property
    def forward_seconds(self) -> float:
        return self.compute_seconds + self.delivery_seconds

    @property
    def peak_bytes(self) -> int:
        states = self.state_bytes + self.gradient_bytes + self.optimizer_bytes
        return states + self.activation_bytes + self.buffer_bytes + self.saved_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """`bottleneck_seconds`: the most loaded device. `latency_seconds`: a lone batch's, until all stages have run.

    `step_seconds`: a whole training step with its update, None in inference. `memory_share`: the fullest device's share
    of its bytes.
    Seconds are infinite where a device cannot run a node that it is given.
    """

    stages: tuple[StageEvaluation, ...]
    device_load_seconds: tuple[float, ...]
    device_peak_bytes: tuple[int, ...]
    bottleneck_seconds: float
    latency_seconds: float
    memory_share: float
    step_seconds: float | None = None

    def fits(self, problem: PartitionProblem) -> bool:
        """Whether every device has the bytes for its stages."""
        return bool((np.array(self.device_peak_bytes) <= problem.device_memory_bytes).all())


def objective_value(evaluation: Evaluation, objective: Objective) -> float:
    """The number to make least."""
    if objective is Objective.STEP_TIME:
        assert evaluation.step_seconds is not None, "step time of a problem without training"
        return evaluation.step_seconds
    if objective is Objective.MEMORY:
        return evaluation.memory_share
    return evaluation.bottleneck_seconds if objective is Objective.THROUGHPUT else evaluation.latency_seconds


def evaluate(problem: PartitionProblem, assignment: Assignment) -> Evaluation:
    """Linear in reads + stages x values, in training + stages x microbatches. Whether memory suffices is not asked."""
    problem, assignment = expanded(problem, assignment)
    flow = traffic(problem, np.asarray(assignment.stage_of_node, dtype=np.int64), assignment.num_stages)
    stages, costs = _stages(problem, assignment, flow)
    seconds = None
    if problem.training is not None:
        step = _training_step(problem, assignment, flow, costs)
        orders = _orders(problem, assignment, step, stages)
        microbatches = counted_microbatches(orders, assignment.num_stages)
        stages = tuple(
            replace(stage, saved_bytes=count * stage.saved_bytes)
            for stage, count in zip(stages, microbatches, strict=True)
        )
        seconds = step_seconds(step, orders) + _update_seconds(problem, assignment, stages)
    loads = [0.0] * problem.num_devices
    peaks = [0] * problem.num_devices
    for stage, devices in zip(stages, assignment.devices_of_stage, strict=True):
        for device in devices:
            loads[device] += stage.load_seconds / len(devices)
            peaks[device] += stage.peak_bytes
    return Evaluation(
        stages=stages,
        device_load_seconds=tuple(loads),
        device_peak_bytes=tuple(peaks),
        bottleneck_seconds=max(loads),
        latency_seconds=_latency(assignment, costs, flow, stages[0].delivery_seconds),
        memory_share=_memory_share(problem, peaks),
        step_seconds=seconds,
    )


def _update_seconds(problem: PartitionProblem, assignment: Assignment, stages: Sequence[StageEvaluation]) -> float:
    """When all devices have done their passes."""
    gradients, states = np.zeros(problem.num_devices), np.zeros(problem.num_devices)
    for stage, devices in zip(stages, assignment.devices_of_stage, strict=True):
        gradients[list(devices)] += stage.gradient_bytes
        states[list(devices)] += stage.optimizer_bytes
    updates = [
        update_seconds(
            int(gradients[device]),
            int(states[device]),
            float(problem.device_norm_rate[device]),
            float(problem.device_update_rate[device]),
        )
        for device in np.flatnonzero(gradients)
    ]
    first, *others = dict.fromkeys(device for devices in assignment.devices_of_stage for device in devices)
    latency = problem.link_latency_seconds + problem.link_handover_seconds
    return seconds_after_passes(
        updates, agreement_seconds(latency[others, first].tolist(), latency[first, others].tolist())
    )


def with_best_order(problem: PartitionProblem, assignment: Assignment) -> Assignment:
    """With the best order of a training step's passes that is found, if that is the schedule asked for."""
    if problem.training is None or problem.training.schedule is not PipelineSchedule.BEST:
        return assignment
    inner, whole = expanded(problem, assignment)
    flow = traffic(inner, np.asarray(whole.stage_of_node, dtype=np.int64), whole.num_stages)
    stages, costs = _stages(inner, whole, flow)
    step = _training_step(inner, whole, flow, costs)
    return replace(assignment, orders=tuple(best_order(step, _room(inner, whole, stages)).orders.items()))


def _orders(
    problem: PartitionProblem, assignment: Assignment, step: TrainingStep, stages: Sequence[StageEvaluation]
) -> Mapping[int, Sequence[Step]]:
    """The best order is searched once, for the assignment that was chosen: others are judged by a quick one."""
    assert problem.training is not None
    if assignment.orders:
        return dict(assignment.orders)
    if problem.training.schedule is PipelineSchedule.BEST:
        if math.isfinite(sum(stage.load_seconds for stage in stages)):
            return quick_order(step, _room(problem, assignment, stages))
        return device_orders(PipelineSchedule.ONE_F_ONE_B, step.microbatches, step.copies)
    return device_orders(problem.training.schedule, step.microbatches, step.copies)


def _room(problem: PartitionProblem, assignment: Assignment, stages: Sequence[StageEvaluation]) -> Room:
    """`stages` with what they save of one microbatch: what their devices have besides all else that they hold."""
    room = {device: float(problem.device_memory_bytes[device]) for own in assignment.devices_of_stage for device in own}
    for stage, devices in zip(stages, assignment.devices_of_stage, strict=True):
        for device in devices:
            room[device] -= stage.peak_bytes - stage.saved_bytes
    return Room(saved_bytes=tuple(stage.saved_bytes for stage in stages), device_bytes=room)


def _training_step(
    problem: PartitionProblem, assignment: Assignment, flow: Traffic, costs: Sequence[StageSeconds]
) -> TrainingStep:
    assert problem.training is not None
    edges, gradient_edges = _edges(problem, flow)
    return TrainingStep(
        copies=assignment.devices_of_stage,
        stages=_with_handovers(problem, assignment, flow, costs),
        edges=tuple(edges),
        gradient_edges=tuple(gradient_edges),
        reductions=tuple(_reductions(problem, assignment, np.asarray(assignment.stage_of_node, dtype=np.int64))),
        microbatches=problem.training.microbatches,
    )


def _with_handovers(
    problem: PartitionProblem, assignment: Assignment, flow: Traffic, costs: Sequence[StageSeconds]
) -> tuple[StageSeconds, ...]:
    if not problem.link_handover_seconds.any():
        return tuple(costs)
    of_stages = handovers(problem, flow.crossings, assignment.devices_of_stage)
    return tuple(
        replace(stage, handover=float(forward), gradients_handover=float(gradients))
        for stage, forward, gradients in zip(costs, of_stages.forward, of_stages.gradients, strict=True)
    )


def _stages(
    problem: PartitionProblem, assignment: Assignment, flow: Traffic
) -> tuple[tuple[StageEvaluation, ...], tuple[StageSeconds, ...]]:
    """Each stage with what it saves of one microbatch, and its parts of a microbatch's seconds."""
    copies = assignment.devices_of_stage
    stage_of_node = np.asarray(assignment.stage_of_node, dtype=np.int64)
    forward = exchange_seconds(problem, flow.crossings, copies)
    gradients = gradient_exchange_seconds(problem, flow.crossings, copies)
    communication = forward.received + forward.sent + gradients.received + gradients.sent
    recomputing = [
        problem.recomputes_activations and stage not in assignment.keeping for stage in range(assignment.num_stages)
    ]
    with_gradients = set(flow.crossings.targets[problem.value_gradient_bytes[flow.crossings.values] > 0].tolist())
    nodes_of = NodesByStage(stage_of_node, assignment.num_stages)
    sizes = stage_bytes(problem, nodes_of, flow, np.array(recomputing))
    buffers = _buffer_bytes(problem, assignment, flow, sizes.moved)
    flops = np.bincount(stage_of_node, problem.flops, assignment.num_stages)
    stages = []
    for stage, nodes in enumerate(nodes_of.stages()):
        backward_seconds, weight_share = _backward(
            problem, copies[stage], nodes, recomputed=recomputing[stage], is_split=stage in with_gradients
        )
        stages.append(
            StageEvaluation(
                compute_seconds=_slowest(problem.pass_seconds, copies[stage], nodes),
                delivery_seconds=_delivery(problem, copies[stage], nodes),
                communication_seconds=float(communication[stage]),
                flops=float(flops[stage]),
                state_bytes=int(sizes.states[stage]),
                activation_bytes=int(sizes.activations[stage]),
                buffer_bytes=buffers[stage],
                backward_seconds=backward_seconds,
                weight_share=weight_share,
                gradient_bytes=int(sizes.gradients[stage]),
                optimizer_bytes=int(sizes.optimizer[stage]),
                saved_bytes=int(sizes.saved[stage]),
                recomputes_activations=recomputing[stage],
            )
        )
    return tuple(stages), _stage_seconds(stages, forward, gradients)


def _buffer_bytes(
    problem: PartitionProblem, assignment: Assignment, flow: Traffic, moved_bytes: Integers
) -> tuple[int, ...]:
    """Of all microbatches in flight. Steps fit theirs to their order, whatever copies there are."""
    in_flight = problem.microbatches_in_flight
    if problem.training is not None or not assignment.replicas:
        return tuple((in_flight * moved_bytes).tolist())
    copies = [len(devices) for devices in assignment.devices_of_stage]
    edges, _ = _edges(problem, flow)
    buffer_bytes = np.array(windows_of_copies(in_flight, copies, edges)) * moved_bytes
    inputs = (flow.made_in < 0) & (flow.last_needed_in >= 0)
    buffer_bytes[0] += windows_at_clients(in_flight, copies[0]) * problem.value_bytes[inputs].sum()
    buffer_bytes[-1] += windows_at_clients(in_flight, copies[-1]) * problem.value_bytes[problem.value_returned].sum()
    return tuple(buffer_bytes.tolist())


def _backward(
    problem: PartitionProblem, devices: Sequence[int], nodes: Integers, *, recomputed: bool, is_split: bool
) -> tuple[float, float]:
    """Seconds of the slowest device's pass, and weights' share of it: all where no gradient goes back to a stage."""
    if problem.training is None:
        return 0.0, USUAL_WEIGHT_SHARE
    seconds = _slowest(problem.backward_seconds(recomputed=recomputed, is_split=is_split), devices, nodes)
    plain = problem.backward_seconds(recomputed=False, is_split=is_split)
    slowest = max(devices, key=lambda device: float(plain[device, nodes].sum()))
    whole = float(plain[slowest, nodes].sum())
    if not 0.0 < whole < math.inf:
        return seconds, USUAL_WEIGHT_SHARE
    return seconds, float(problem.weight_seconds[slowest, nodes].sum()) / whole if is_split else 1.0


def _delivery(problem: PartitionProblem, devices: Sequence[int], nodes: Integers) -> float:
    return _slowest(problem.delivery_seconds, devices, nodes) if problem.has_deliveries else 0.0


def _memory_share(problem: PartitionProblem, peaks: Sequence[int]) -> float:
    room = problem.device_memory_bytes.astype(np.float64)
    filled = np.asarray(peaks, dtype=np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        shares = np.where(filled > 0, filled / room, 0.0)
    return float(shares.max())


def _latency(assignment: Assignment, costs: Sequence[StageSeconds], flow: Traffic, delivery_seconds: float) -> float:
    done, _ = times_of_lone_batch(
        assignment.device_of_stage,
        sources_of_lone_batch(flow),
        taken=delivery_seconds,
        received=[stage.received for stage in costs],
        forward=[stage.forward for stage in costs],
        sent=[stage.sent for stage in costs],
    )
    return max(done)


def times_of_lone_batch(
    device_of_stage: Sequence[int],
    sources: Sequence[Sequence[int]],
    *,
    taken: float,
    received: Sequence[float],
    forward: Sequence[float],
    sent: Sequence[float],
) -> tuple[list[float], dict[int, float]]:
    """When each stage has run, and each of their devices is free, as planner/schedule/simulate.py has stages run.

    `sources` [stages], ascending: the stages that it waits for, AHEAD for what stage 0 hands on once it has `taken` the
    inputs. A stage that is sent nothing begins once the one before it has heard of the batch: from its own first edge.
    """
    free: dict[int, float] = {}
    done, heard = [0.0] * len(device_of_stage), 0.0
    for index, device in enumerate(device_of_stage):
        there = [taken if source == AHEAD else done[source] for source in sources[index]]
        heard = there[0] if there else heard
        start = max([free.get(device, 0.0), heard, *there])
        heard = taken if index == 0 else heard
        done[index] = start + received[index] + forward[index]
        free[device] = done[index] + sent[index]
    return done, free


def _stage_seconds(
    stages: Sequence[StageEvaluation], forward: Exchange, gradients: Exchange
) -> tuple[StageSeconds, ...]:
    return tuple(
        StageSeconds(
            forward=stage.forward_seconds,
            backward=stage.backward_seconds,
            weight_share=stage.weight_share,
            received=float(forward.received[index]),
            sent=float(forward.sent[index]),
            gradients_received=float(gradients.received[index]),
            gradients_sent=float(gradients.sent[index]),
        )
        for index, stage in enumerate(stages)
    )


def _edges(problem: PartitionProblem, flow: Traffic) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """Pairs of stages that a microbatch passes between, and those that a gradient comes back over.

    A stage that is given nothing hears of each microbatch from the one before it.
    """
    fed = {target for _, target in flow.edges}
    edges = [*flow.edges, *((stage - 1, stage) for stage in range(1, flow.num_stages) if stage not in fed)]
    carry = problem.value_gradient_bytes[flow.crossings.values] > 0
    sources, targets = flow.crossings.sources[carry], flow.crossings.targets[carry]
    return sorted(edges), sorted(set(zip(sources.tolist(), targets.tolist(), strict=True)))


def _reductions(problem: PartitionProblem, assignment: Assignment, stage_of_node: Integers) -> list[Reduction]:
    """Stages with copies sum their gradients, then stages that hold the same state that state's, over all devices."""
    copies = assignment.devices_of_stage
    states, users = state_holders(problem, stage_of_node, assignment.num_stages)
    trained = problem.state_gradient_bytes[states] > 0
    holders = set(zip(states[trained].tolist(), users[trained].tolist(), strict=True))
    tied = {
        state: tuple(dict.fromkeys(device for stage in stages for device in copies[stage]))
        for state, stages in tied_gradients(holders).items()
    }
    over_devices = {state: devices for state, devices in tied.items() if len(devices) > 1}
    own = [0] * len(copies)
    for state, holder in holders:
        own[holder] += 0 if state in over_devices else int(problem.state_gradient_bytes[state])
    sums = [(devices, own[stage]) for stage, devices in enumerate(copies) if len(devices) > 1 and own[stage]]
    sums += [(devices, int(problem.state_gradient_bytes[state])) for state, devices in over_devices.items()]
    return [_reduction(problem, devices, size_bytes) for devices, size_bytes in sums]


def _reduction(problem: PartitionProblem, devices: tuple[int, ...], size_bytes: int) -> Reduction:
    first, others = devices[0], list(devices[1:])
    latency, per_byte, handover = (
        float(max(cost[first, others].max(), cost[others, first].max()))
        for cost in (problem.link_latency_seconds, problem.link_seconds_per_byte, problem.link_handover_seconds)
    )
    return Reduction(devices=devices, seconds=sum_seconds(size_bytes, len(devices), latency, per_byte, handover))


def _slowest(seconds: Floats, devices: Sequence[int], nodes: Integers) -> float:
    if len(devices) == 1:
        return float(seconds[devices[0], nodes].sum())
    return max(float(seconds[device, nodes].sum()) for device in devices)
