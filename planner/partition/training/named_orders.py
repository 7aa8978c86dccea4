"""The order of each device's passes in one training step, for the schedules that have a rule."""

from __future__ import annotations

from collections.abc import Sequence

from planner.partition.objective import V_SCHEDULES, PipelineSchedule
from planner.partition.training.pipeline_order import Step, pipeline_orders
from planner.partition.training.v_orders import v_orders


def device_orders(
    schedule: PipelineSchedule, microbatches: int, devices_of_stage: Sequence[Sequence[int]]
) -> dict[int, tuple[Step, ...]]:
    """By device, in the order of their first stages. `planner.partition.training.orders` searches the best order.

    Raises OptionsError for a schedule that needs its stages to stand otherwise.
    """
    assert schedule is not PipelineSchedule.BEST, "the best order has no rule"
    rule = v_orders if schedule in V_SCHEDULES else pipeline_orders
    orders = rule(schedule, microbatches, devices_of_stage)
    return {device: _share(order, device, devices_of_stage) for device, order in orders.items()}


def _share(order: Sequence[Step], device: int, devices_of_stage: Sequence[Sequence[int]]) -> tuple[Step, ...]:
    """The steps that fall to this copy."""
    copy = {stage: list(devices).index(device) for stage, devices in enumerate(devices_of_stage) if device in devices}
    return tuple(step for step in order if step.microbatch % len(devices_of_stage[step.stage]) == copy[step.stage])
