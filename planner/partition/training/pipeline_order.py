"""The order in which each device runs its forward and backward passes in one training step, for each schedule.

- GPipe (Huang et al. 2019): all forward passes, then all backward ones.
- 1F1B (Narayanan et al. 2019): stage s of S runs S - s - 1 passes ahead, then one forward and one backward in turn.
- interleaved 1F1B (Narayanan et al. 2021): a device with several stages takes its microbatches in groups, stage by
  stage. It needs several stages per device; with one it is 1F1B.
- ZB-H1 (Qi et al. 2023): 1F1B whose backward passes are split, for inputs and for weights; stage s puts the weights'
  off by s microbatches, so that they fill the bubble while every stage keeps S microbatches. Several stages on a device
  run interleaved, their weights' passes at once.
- ZB-H2 (Qi et al. 2023): twice as many passes ahead, weights put off by twice as many microbatches. No device waits
  between its first pass and its last where all passes take as long; every stage keeps 2 S - 1.

`named_orders.py` has the schedules for stages in a V, and chooses.

A copy j of r of a stage takes the microbatches k with k mod r = j.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from planner.partition.objective import PipelineSchedule


class Pass(Enum):
    """BACKWARD is whole; where it is split, BACKWARD_INPUT comes first and hands its gradient on."""

    FORWARD = "forward"
    BACKWARD = "backward"
    BACKWARD_INPUT = "backward_input"
    BACKWARD_WEIGHT = "backward_weight"


@dataclass(frozen=True, slots=True)
class Step:
    """One pass of one microbatch through one stage."""

    kind: Pass
    stage: int
    microbatch: int


def pipeline_orders(
    schedule: PipelineSchedule, microbatches: int, devices_of_stage: Sequence[Sequence[int]]
) -> dict[int, list[Step]]:
    """By device, in the order of their first stages, as if no stage had copies.

    Linear in the steps, but for irregular interleavings.
    """
    stages_of: dict[int, list[int]] = {}
    for stage, devices in enumerate(devices_of_stage):
        for device in devices:
            stages_of.setdefault(device, []).append(stage)
    num_stages = len(devices_of_stage)
    if all(len(stages) == 1 for stages in stages_of.values()):
        whole = [_one_stage(schedule, num_stages, stage, microbatches) for stage in range(num_stages)]
        return {device: whole[stages[0]] for device, stages in stages_of.items()}
    if schedule is PipelineSchedule.GPIPE:
        return {device: _wave(stages, num_stages, microbatches) for device, stages in stages_of.items()}
    return _interleaved(stages_of, num_stages, microbatches, schedule)


def _one_stage(schedule: PipelineSchedule, num_stages: int, stage: int, microbatches: int) -> list[Step]:
    if schedule is PipelineSchedule.GPIPE:
        return _wave([stage], num_stages, microbatches)
    ahead = min(num_stages - stage - 1, microbatches)
    if schedule is PipelineSchedule.ZERO_BUBBLE:
        return _zero_bubble(stage, ahead, microbatches, put_off=stage)
    if schedule is PipelineSchedule.ZERO_BUBBLE_H2:
        return _zero_bubble(stage, min(2 * (num_stages - stage - 1), microbatches), microbatches, put_off=2 * stage)
    steps = [Step(Pass.FORWARD, stage, index) for index in range(ahead)]
    for index in range(microbatches):
        if index + ahead < microbatches:
            steps.append(Step(Pass.FORWARD, stage, index + ahead))
        steps.append(Step(Pass.BACKWARD, stage, index))
    return steps


def _zero_bubble(stage: int, ahead: int, microbatches: int, *, put_off: int) -> list[Step]:
    steps = [Step(Pass.FORWARD, stage, index) for index in range(ahead)]
    weights = 0
    for index in range(microbatches):
        cooling = index + ahead >= microbatches
        if not cooling:
            steps.append(Step(Pass.FORWARD, stage, index + ahead))
        steps.append(Step(Pass.BACKWARD_INPUT, stage, index))
        if cooling or index >= put_off:
            steps.append(Step(Pass.BACKWARD_WEIGHT, stage, weights))
            weights += 1
    steps += [Step(Pass.BACKWARD_WEIGHT, stage, index) for index in range(weights, microbatches)]
    return steps


def _wave(stages: Sequence[int], num_stages: int, microbatches: int) -> list[Step]:
    """All forward passes, then all backward ones, in the order in which a microbatch can be there."""
    forward = sorted((index + stage, stage, index) for stage in stages for index in range(microbatches))
    backward = sorted((index + num_stages - stage, -stage, index) for stage in stages for index in range(microbatches))
    return [
        *(Step(Pass.FORWARD, stage, index) for _, stage, index in forward),
        *(Step(Pass.BACKWARD, -stage, index) for _, stage, index in backward),
    ]


def _interleaved(
    stages_of: Mapping[int, Sequence[int]], num_stages: int, microbatches: int, schedule: PipelineSchedule
) -> dict[int, list[Step]]:
    """As many passes ahead as Narayanan et al. give for regular shapes, more where others would deadlock."""
    num_devices, extra = len(stages_of), 0
    split = schedule in (PipelineSchedule.ZERO_BUBBLE, PipelineSchedule.ZERO_BUBBLE_H2)
    each = 4 if schedule is PipelineSchedule.ZERO_BUBBLE_H2 else 2
    while True:
        orders = {
            device: _alternating(
                stages, num_devices, each * (num_devices - rank - 1) + extra, microbatches, split=split
            )
            for rank, (device, stages) in enumerate(stages_of.items())
        }
        if extra >= num_stages * microbatches or _can_end(orders, num_stages, microbatches):
            return orders
        extra = 2 * extra + num_devices


def _alternating(stages: Sequence[int], group: int, ahead: int, microbatches: int, *, split: bool) -> list[Step]:
    """`group` microbatches pass through the first stage, then the same through the next."""
    forward = sorted((index // group, stage, index) for stage in stages for index in range(microbatches))
    backward = sorted((index // group, -stage, index) for stage in stages for index in range(microbatches))
    ahead = min(ahead + (len(stages) - 1) * group, len(forward))
    steps = [Step(Pass.FORWARD, stage, index) for _, stage, index in forward[:ahead]]
    for position, (_, stage, index) in enumerate(backward):
        if position + ahead < len(forward):
            _, next_stage, next_index = forward[position + ahead]
            steps.append(Step(Pass.FORWARD, next_stage, next_index))
        if split:
            steps += [Step(Pass.BACKWARD_INPUT, -stage, index), Step(Pass.BACKWARD_WEIGHT, -stage, index)]
        else:
            steps.append(Step(Pass.BACKWARD, -stage, index))
    return steps


def _can_end(orders: Mapping[int, Sequence[Step]], num_stages: int, microbatches: int) -> bool:
    """Whether no device waits for ever, if each stage needs the one before it and, backward, the one behind it.

    Stands for every DAG of stages: each of its edges leads to a later stage.
    """
    forward, backward = [0] * microbatches, [0] * microbatches
    position = dict.fromkeys(orders, 0)
    progress = True
    while progress:
        progress = False
        for device, order in orders.items():
            start = position[device]
            while position[device] < len(order) and _do(order[position[device]], forward, backward, num_stages):
                position[device] += 1
            progress |= position[device] > start
    return all(position[device] == len(order) for device, order in orders.items())


def _do(step: Step, forward: list[int], backward: list[int], num_stages: int) -> bool:
    """By microbatch, how many stages it has passed; `backward` counts from the last."""
    index = step.microbatch
    if step.kind is Pass.FORWARD:
        if forward[index] < step.stage:
            return False
        forward[index] = step.stage + 1
    elif step.kind is not Pass.BACKWARD_WEIGHT:
        if forward[index] < num_stages or backward[index] < num_stages - 1 - step.stage:
            return False
        backward[index] = num_stages - step.stage
    return True
