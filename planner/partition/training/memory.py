"""What a training step asks of a stage besides its seconds: how many microbatches it keeps activations of at once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from planner.partition.objective import PipelineSchedule, Training
from planner.partition.training.pipeline_order import Pass, Step


def kept_microbatches(training: Training, num_stages: int, stage: int) -> int:
    """Of stage `stage`, with one stage per device and no copies. Never grows with `stage`, nor shrinks with S.

    GPipe: every one. 1F1B: S - stage. ZB-H1: S, since the weights' passes come late; ZB-H2: 2 S - 1. The best order
    makes do with what memory there is, which is one where there is room for no more.
    """
    m = training.microbatches
    if training.schedule is PipelineSchedule.BEST:
        return 1
    if training.schedule is PipelineSchedule.GPIPE:
        return m
    if training.schedule is PipelineSchedule.ZERO_BUBBLE:
        return min(m, num_stages)
    if training.schedule is PipelineSchedule.ZERO_BUBBLE_H2:
        return min(m, 2 * num_stages - 1)
    return min(m, num_stages - stage)


def depends_on_num_stages(training: Training) -> bool:
    """Whether one more stage behind makes a stage keep more."""
    return training.schedule not in (PipelineSchedule.GPIPE, PipelineSchedule.BEST)


def most_kept_microbatches(training: Training, num_devices: int) -> int:
    """At least what any stage keeps, wherever it stands, with one stage per device."""
    return kept_microbatches(training, num_devices, 0)


def most_kept_with_copies(training: Training) -> int:
    """At least what any copy of any stage keeps, and what the best order makes do with."""
    return 1 if training.schedule is PipelineSchedule.BEST else training.microbatches


def counted_microbatches(orders: Mapping[int, Sequence[Step]], num_stages: int) -> list[int]:
    """[stages] the most that one copy keeps at once, counted in the order of its device. Linear in the steps."""
    most = [0] * num_stages
    for order in orders.values():
        kept = [0] * num_stages
        for step in order:
            if step.kind is Pass.FORWARD:
                kept[step.stage] += 1
                most[step.stage] = max(most[step.stage], kept[step.stage])
            elif step.kind is not Pass.BACKWARD_INPUT:
                kept[step.stage] -= 1
    return most


def sum_seconds(
    size_bytes: int,
    num_holders: int,
    latency_seconds: float,
    seconds_per_byte: float,
    handover_seconds: float = 0.0,
) -> float:
    """Gradients of so many bytes gather on the first holder, one message after the other, and their sum goes back to
    each, over the slowest of their links, the first of each way handed over; 0 for a lone one."""
    if num_holders < 2 or not size_bytes:
        return 0.0
    return 2 * (handover_seconds + (num_holders - 1) * (latency_seconds + size_bytes * seconds_per_byte))


def tied_gradients(holders: Iterable[tuple[int, int]]) -> dict[int, tuple[int, ...]]:
    """From distinct (state, stage): the stages that hold each state that more than one holds, ascending."""
    stages: dict[int, list[int]] = {}
    for state, stage in sorted(holders):
        stages.setdefault(state, []).append(stage)
    return {state: tuple(holders_of_state) for state, holders_of_state in stages.items() if len(holders_of_state) > 1}
