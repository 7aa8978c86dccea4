"""A plan's norms and optimizers, by device: see planner.partition.training.update."""

from __future__ import annotations

from planner.cost.update_rates import update_rates
from planner.partition.training.update import (
    UpdateSeconds,
    agreement_seconds,
    seconds_after_passes,
    update_seconds,
)
from planner.plan.plan import Plan


def device_updates(plan: Plan) -> dict[str, UpdateSeconds]:
    """Of all stages on each device that trains some state; of other devices and in inference none."""
    gradients, states = dict[str, int](), dict[str, int]()
    for stage in plan.stages:
        for device_id in stage.device_ids if stage.memory.gradient_bytes else ():
            gradients[device_id] = gradients.get(device_id, 0) + stage.memory.gradient_bytes
            states[device_id] = states.get(device_id, 0) + stage.memory.optimizer_bytes
    seconds = {}
    for device in plan.inventory.devices:
        if device.id in gradients:
            rates = update_rates(device, plan.cost_sources)
            seconds[device.id] = update_seconds(gradients[device.id], states[device.id], rates.norms, rates.optimizer)
    return seconds


def agreement(plan: Plan) -> float:
    """All devices with the first one, whatever they train."""
    first, *others = dict.fromkeys(device_id for stage in plan.stages for device_id in stage.device_ids)

    def seconds(source_id: str, target_id: str) -> float:
        return plan.handover_seconds(source_id, target_id) + plan.link(source_id, target_id).latency_seconds

    return agreement_seconds(
        [seconds(other, first) for other in others],
        [seconds(first, other) for other in others],
    )


def after_passes(plan: Plan) -> float:
    """Seconds from the last pass to the step's end."""
    return seconds_after_passes(device_updates(plan).values(), agreement(plan))
