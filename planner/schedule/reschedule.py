"""The same stages under another schedule, or with another number of microbatches."""

from __future__ import annotations

from dataclasses import replace

from planner.partition.objective import PipelineSchedule, Training
from planner.partition.training.orders.best_order import best_order
from planner.partition.training.orders.room import Room
from planner.partition.training.step_graph import Reduction, StageSeconds, TrainingStep
from planner.plan.invariants.memory import kept_microbatches
from planner.plan.plan import PassOrder, Plan
from planner.schedule.link_seconds import reduction_seconds, stage_messages
from planner.schedule.training import reducing_stages, tie_devices


def with_training(plan: Plan, training: Training) -> Plan:
    """A plan for training, asked for otherwise. Its seconds and memory are those that it was made with.

    Under the best order it holds what is found for it, in the memory that its devices have.
    """
    with_training = replace(plan, options=replace(plan.options, training=training), pass_orders=())
    if training.schedule is not PipelineSchedule.BEST:
        return with_training
    if training == plan.options.training:
        return plan
    orders = best_order(_training_step(plan, training.microbatches), _room(plan)).orders
    devices = plan.inventory.devices
    return replace(
        with_training,
        pass_orders=tuple(PassOrder(device_id=devices[device].id, steps=steps) for device, steps in orders.items()),
    )


def _training_step(plan: Plan, microbatches: int) -> TrainingStep:
    index = _device_indexes(plan)
    return TrainingStep(
        copies=tuple(tuple(index[device_id] for device_id in stage.device_ids) for stage in plan.stages),
        stages=tuple(
            StageSeconds(
                forward=stage.forward_seconds,
                backward=stage.backward_seconds,
                weight_share=stage.weight_share,
                received=messages.received,
                sent=messages.sent,
                gradients_received=messages.gradients_received,
                gradients_sent=messages.gradients_sent,
                handover=messages.handover,
                gradients_handover=messages.gradients_handover,
            )
            for stage, messages in zip(plan.stages, stage_messages(plan), strict=True)
        ),
        edges=tuple((edge.source_stage, edge.target_stage) for edge in plan.edges),
        gradient_edges=tuple((edge.source_stage, edge.target_stage) for edge in plan.edges if edge.gradient_value_ids),
        reductions=tuple(_reductions(plan, index)),
        microbatches=microbatches,
    )


def _reductions(plan: Plan, index: dict[str, int]) -> list[Reduction]:
    sums = [(plan.stages[stage].device_ids, size_bytes) for stage, size_bytes in reducing_stages(plan).items()]
    sums += [(tie_devices(plan, tie), group.size_bytes) for tie, group in enumerate(plan.tie_groups)]
    return [
        Reduction(
            devices=tuple(index[device_id] for device_id in device_ids),
            seconds=reduction_seconds(plan, device_ids, size_bytes),
        )
        for device_ids, size_bytes in sums
        if device_ids
    ]


def _room(plan: Plan) -> Room:
    """Each device's bytes besides what its stages hold without a microbatch."""
    index, saved = _device_indexes(plan), []
    room = {index[device_id]: 0.0 for stage in plan.stages for device_id in stage.device_ids}
    for device in plan.inventory.devices:
        if index[device.id] in room:
            room[index[device.id]] = float(device.memory_bytes)
    for stage, num_microbatches in zip(plan.stages, kept_microbatches(plan), strict=True):
        saved.append(stage.memory.saved_bytes // max(num_microbatches, 1))
        for device_id in stage.device_ids:
            room[index[device_id]] -= stage.memory.peak_bytes - stage.memory.saved_bytes
    return Room(saved_bytes=tuple(saved), device_bytes=room)


def _device_indexes(plan: Plan) -> dict[str, int]:
    return {device.id: position for position, device in enumerate(plan.inventory.devices)}
