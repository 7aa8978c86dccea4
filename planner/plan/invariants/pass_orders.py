"""A plan holds the order of a training step's passes exactly if its schedule has no rule for it.

Each device runs each pass of its stages once, for its share of the microbatches. Whether the order can be run is what
`planner/schedule/check_training.py` proves of the whole schedule.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from planner.partition.objective import PipelineSchedule
from planner.partition.training.pipeline_order import Pass, Step
from planner.plan.invariants.broken import broken
from planner.plan.plan import Plan


def check_pass_orders(plan: Plan) -> None:
    training = plan.options.training
    if training is None or training.schedule is not PipelineSchedule.BEST:
        if plan.pass_orders:
            name = training.schedule.value if training else "inference"
            raise broken("pass_orders", f"the plan is for {name} and holds an order of passes")
        return
    device_ids = [order.device_id for order in plan.pass_orders]
    used = {device_id for stage in plan.stages for device_id in stage.device_ids}
    if len(set(device_ids)) != len(device_ids) or set(device_ids) != used:
        raise broken("pass_orders", f"there are passes for devices {device_ids}, the stages are on {sorted(used)}")
    for order in plan.pass_orders:
        wrong = Counter(order.steps)
        wrong.subtract(_needed(plan, order.device_id, training.microbatches))
        first = next((step for step, count in wrong.items() if count), None)
        if first is not None:
            times = "lacks" if wrong[first] < 0 else "has too many of"
            raise broken("pass_orders", f"device {order.device_id!r} {times} {first}", device=order.device_id)


def _needed(plan: Plan, device_id: str, microbatches: int) -> Iterator[Step]:
    for stage in plan.stages:
        if device_id in stage.device_ids:
            for k in range(stage.device_ids.index(device_id), microbatches, len(stage.device_ids)):
                for kind in (Pass.FORWARD, Pass.BACKWARD_INPUT, Pass.BACKWARD_WEIGHT):
                    yield Step(kind, stage.index, k)
