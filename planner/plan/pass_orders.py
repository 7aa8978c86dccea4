"""The order of each device's passes in a plan's training step: its schedule's rule, or what the plan holds."""

from __future__ import annotations

from planner.errors import OptionsError
from planner.partition.objective import PipelineSchedule
from planner.partition.training.named_orders import device_orders
from planner.partition.training.pipeline_order import Step
from planner.plan.plan import Plan


def pass_orders(plan: Plan) -> dict[str, tuple[Step, ...]]:
    """By device id, in the order of their first stages. Raises OptionsError for a plan without training."""
    training = plan.options.training
    if training is None:
        raise OptionsError("the plan is for inference; plan with a training schedule to have a training step")
    if training.schedule is PipelineSchedule.BEST:
        return {order.device_id: order.steps for order in plan.pass_orders}
    index = {device.id: position for position, device in enumerate(plan.inventory.devices)}
    copies = [[index[device_id] for device_id in stage.device_ids] for stage in plan.stages]
    orders = device_orders(training.schedule, training.microbatches, copies)
    return {plan.inventory.devices[device].id: order for device, order in orders.items()}
